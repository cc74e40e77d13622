// What a shop has anyway: products in MySQL, and their pages.
import { createPool } from 'mysql2/promise';

const { MYSQL_HOST: host, MYSQL_PORT: port, MYSQL_USER: user, MYSQL_DATABASE: database } = process.env;
const options = { host, port: Number(port), user, database, multipleStatements: true, connectionLimit: 5 };
export const pool = (globalThis.pool ??= createPool(options)); // Next.js may load this file more than once

/** Returns a product, or undefined. */
export async function find(id) {
  const [[product]] = await pool.execute('SELECT id, name FROM products WHERE id = ?', [id]);
  return product;
}

/** Returns all products with their exact views: null if they did not arrive in time. */
export async function list(views) {
  const [products] = await pool.query('SELECT id, name FROM products ORDER BY id');
  let hasViews = true;
  const values = await views.values(products.map(({ id }) => id), () => ((hasViews = false), 0));
  return products.map(({ id, name }, i) => ({ id, name, views: hasViews ? values[i] : null }));
}

const escape = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
const page = (title, body) => `<!doctype html><html lang="en"><meta charset="utf-8"><title>${escape(title)}</title><h1>${escape(title)}</h1>${body}</html>`;

export const productPage = ({ name }) => page(name, '<p><a href="/products">All products</a></p>');

export const listPage = (products) =>
  page('Products', `<ul>${products.map(({ id, name, views }) => `<li><a href="/products/${id}">${escape(name)}</a>: ${views ?? 'many'} views</li>`).join('')}</ul>`);
