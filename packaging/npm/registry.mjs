// An npm registry for trying packages before they are published: `node registry.mjs FOLDER` serves the tarballs in the folder,
// redirects to the configured registry for all others, and prints its address.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';

const folder = process.argv[2];
const other = execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).trim().replace(/\/$/, '');
const server = createServer((request, response) => {
  const name = decodeURIComponent(request.url.slice(1));
  if (name.endsWith('.tgz') && files.includes(name)) return response.end(readFileSync(`${folder}/${name}`));
  if (!packages[name]) return response.writeHead(307, { location: other + request.url }).end();
  response.setHeader('content-type', 'application/json').end(JSON.stringify(packages[name]));
});
const files = readdirSync(folder).filter((file) => file.endsWith('.tgz'));
const packages = {};
server.listen(0, '127.0.0.1', () => {
  const address = `http://127.0.0.1:${server.address().port}`;
  for (const file of files) {
    const manifest = JSON.parse(execFileSync('tar', ['-xzOf', `${folder}/${file}`, 'package/package.json']));
    const integrity = `sha512-${createHash('sha512').update(readFileSync(`${folder}/${file}`)).digest('base64')}`;
    const version = { ...manifest, dist: { tarball: `${address}/${file}`, integrity } };
    packages[manifest.name] = {
      name: manifest.name, 'dist-tags': { latest: manifest.version }, versions: { [manifest.version]: version },
    };
  }
  console.log(address);
});
