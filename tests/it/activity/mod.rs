mod api;
mod model;
