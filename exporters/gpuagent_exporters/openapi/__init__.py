"""The HTTP API as an OpenAPI document: what each route takes and answers, as tables from which the rest is made.

`schema` has the vocabulary, the modules named after a part of the API say what its documents hold, `operations` puts
both together into a table of routes, and `document` and `reference` write it down for programs and for people. Nothing
here is loaded until somebody asks for it.
"""
