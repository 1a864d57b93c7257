"""Answers of the API functions: one file a journey, with its frozen record and the table of its fields beside it.

Text, JSON, pages and figures are renderers of these tables (`field.to_json`, ``report``).
"""
