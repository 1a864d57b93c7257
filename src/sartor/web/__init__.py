"""``sartor serve``: the journeys over HTTP, and a page to explore shapes, plans and chips (extra ``web``)."""
