// One copy of the code in Node for both module systems, so that its classes and caller names are the same in both. Bundlers take
// dist/esm, by the condition `module`.
export { Counterfoil, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown } from './dist/index.js';
