mod cluster;
mod connect;
mod cuts;
mod network;
mod runtimes;
