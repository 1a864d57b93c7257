"""``sartor serve``: the journeys over HTTP and one page that tries shapes, plans and chips on (extra ``web``)."""
