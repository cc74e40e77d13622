<?php

add_action('widgets_init', fn() => register_sidebar(['id' => 'side', 'name' => 'Side']));
