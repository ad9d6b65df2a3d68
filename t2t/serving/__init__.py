"""`t2t infer --server`: an HTTP server on Starlette and uvicorn, the `serve` extra."""
