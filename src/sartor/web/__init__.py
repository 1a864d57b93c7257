"""``sartor page``: the API over HTTP, and a page to explore shapes, plans and chips (extra ``web``)."""
