// One copy of the code for both module systems, so that its classes and caller names are the same in both.
export { Counterfoil, CounterfoilError, Misconfigured, NotCounted, OutcomeUnknown } from './dist/index.js';
