mod cluster;
mod connect;
mod cuts;
mod eviction;
mod network;
mod permissions;
mod runtimes;
mod tls;
