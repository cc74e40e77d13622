export { Counterfoil } from './dist/testing.js';
