"""HTTP/1.1, server-sent events, request bodies, middleware, access log."""
