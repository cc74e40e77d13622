// Both are optional, and neither is installed where the package is built.
declare module 'ioredis';
declare module 'redis';
