<!doctype html>
<title>{{ $product->name }}</title>
<h1>{{ $product->name }}</h1>
