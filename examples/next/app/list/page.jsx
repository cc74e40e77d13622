import Link from 'next/link';
import { counterfoil } from '../../lib/counts.js';
import { list } from '../../shop.mjs';

export const dynamic = 'force-dynamic';

export default async function Page() {
  const products = await list((await counterfoil()).buffered('product_views'));
  return (
    <>
      <h1>Products</h1>
      <ul>
        {products.map(({ id, name, views }) => <li key={id}><Link href={`/products/${id}`}>{name}</Link>: {views ?? 'many'} views</li>)}
      </ul>
    </>
  );
}
