import os
from html import escape

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse

from counterfoil import NotCounted, OutcomeUnknown
from counterfoil.asyncio import Counterfoil
from counterfoil.fastapi import Views

client = Counterfoil.connect(
    os.environ.get("COUNTERFOIL_REDIS", "redis://localhost"),
    "shop",
    daemon=os.environ.get("COUNTERFOIL_DAEMON", "http://127.0.0.1:9292"),
)
views = Views(client, secret=os.environ.get("SECRET_KEY", "of a sample"))
app = FastAPI()
app.add_middleware(views.middleware)
product_views = client.buffered("product_views")
IDS = range(1, 21)


@app.get("/products")
async def products(accept: str = Header("")):
    def nothing(error):
        return [None] * len(IDS)

    rows = [{"id": id, "views": views} for id, views in zip(IDS, await product_views.values(IDS, nothing))]
    if "text/html" not in accept:
        return rows
    items = "".join(f'<li><a href="/products/{row["id"]}">Product {row["id"]}</a>: {row["views"]} views</li>' for row in rows)
    return HTMLResponse(f"<!doctype html><title>Products</title><ul>{items}</ul>")


@app.get("/products/{id}", dependencies=[Depends(views.counts_views("product_views"))], response_class=HTMLResponse)
async def product(id: int):
    return f"<!doctype html><title>Product {id}</title><p>{escape(str(await product_views.value(id, 0)))} views</p>"


@app.post("/products/{id}/views")
async def view(id: int, request: Request):
    return {"counted": await views.count_view(request, "product_views", id)}


@app.post("/products/{id}/visits")
async def visit(id: int, request: Request):
    def visitor(request):
        return request.headers["X-Visitor"]

    counted = await views.count_view(request, "product_visitors", id, repeats=False, visitor=visitor)
    return {"counted": counted}


@app.exception_handler(NotCounted)
async def not_counted(request: Request, error: NotCounted):
    return JSONResponse({"error": "not_counted"}, status_code=503)


@app.exception_handler(OutcomeUnknown)
async def outcome_unknown(request: Request, error: OutcomeUnknown):
    return JSONResponse({"error": "outcome_unknown"}, status_code=500)
