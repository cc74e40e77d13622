import ioredis = require('ioredis');
import counterfoil = require('counterfoil');
import testing = require('counterfoil/testing');

const opened: Promise<counterfoil.Counterfoil> = counterfoil.Counterfoil.connect(['127.0.0.1:7001'], 'shop', { library: 'redis' });
export = [opened, new testing.Counterfoil('shop'), new counterfoil.Counterfoil(new ioredis.Redis(), 'shop')];
