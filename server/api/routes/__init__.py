"""Routes as data: a record per route, how it is answered, its errors and its part of the OpenAPI document."""
