<!doctype html>
<title>Products</title>
<ul>
@foreach ($products as $product)
    <li><a href="/products/{{ $product['id'] }}">Product {{ $product['id'] }}</a>: {{ $product['views'] }} views, {{ $product['saves'] }} saves</li>
@endforeach
</ul>
