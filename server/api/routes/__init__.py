"""Routes as data. The record of a route says how it is answered, its errors and its part of the OpenAPI document."""
