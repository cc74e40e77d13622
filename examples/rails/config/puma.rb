port ENV.fetch("PORT", 3000), "127.0.0.1"
workers 2
threads 3, 3
preload_app!
