// These packages are optional, and none of them is installed where this one is built.
declare module 'ioredis';
declare module 'redis';
declare module 'isbot' { export function isbot(userAgent: string): boolean; }
