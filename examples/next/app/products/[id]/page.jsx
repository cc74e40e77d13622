import { headers } from 'next/headers';
import Link from 'next/link';
import { notFound } from 'next/navigation';
import { after } from 'next/server';
import { views } from '../../../lib/counts.js';
import { find } from '../../../shop.mjs';

export default async function Page({ params }) {
  const { id } = await params;
  const product = await find(id);
  if (!product) notFound();
  const request = { headers: await headers() };
  after(() => views.tryCountView(request, id)); // a page is no handler that `counted` could wrap
  return (
    <>
      <h1>{product.name}</h1>
      <p><Link href="/products">All products</Link></p>
    </>
  );
}
