import { counterfoil } from '../../lib/counts.js';
import { list } from '../../shop.mjs';

export const dynamic = 'force-dynamic';

export async function GET() {
  return Response.json(await list((await counterfoil()).buffered('product_views')));
}
