<?php declare(strict_types=1);

// A like is a row, so each visitor likes a post once; a counter has the number of a post's rows.

namespace Counterfoil\WordPress;

use RuntimeException, WP_REST_Request;
use Counterfoil\Rows;

/** Sets or takes back the like of a visitor. Its row decides if that changes anything. */
function set_like(int $post, string $visitor, bool $liked): void {
    global $wpdb;
    $table = table('likes');
    $sql = $liked ? "INSERT IGNORE INTO $table SET post_id = %d, visitor = %s"
        : "DELETE FROM $table WHERE post_id = %d AND visitor = %s";
    $changed = $wpdb->query($wpdb->prepare($sql, $post, $visitor));
    if ($changed === false) throw new RuntimeException("the like is not stored: $wpdb->last_error");
    if ($changed === 1) Rows::count(client()->buffered('post_likes'), $post, $liked ? 1 : -1);
}

/**
 * Returns the exact likes of posts, or those in MySQL if the daemon does not reply.
 *
 * @param list<int> $posts
 * @return array<int, int> by post
 */
function likes(array $posts): array {
    return array_combine($posts, client()->buffered('post_likes')->values($posts, function () use ($posts): array {
        $rows = by_post('SELECT post_id, likes FROM ' . table('like_counts'), $posts);
        return array_map(fn(int $post): int => (int) ($rows[$post]->likes ?? 0), $posts);
    }));
}

/** @return array{likes: int, liked: bool} what the button shows */
function like_state(int $post, string $visitor): array {
    global $wpdb;
    $sql = 'SELECT 1 FROM ' . table('likes') . ' WHERE post_id = %d AND visitor = %s';
    return ['likes' => likes([$post])[$post], 'liked' => (bool) $wpdb->get_var($wpdb->prepare($sql, $post, $visitor))];
}

add_action('rest_api_init', function (): void {
    $liker = fn(): string => is_user_logged_in() ? 'user-' . get_current_user_id() : visitor();
    route('likes', 'GET', fn(int $post): array => like_state($post, $liker()));
    route('likes', 'POST', function (int $post, WP_REST_Request $request) use ($liker): array {
        if (!rules()->leavesOut($_SERVER)) set_like($post, $liker(), rest_sanitize_boolean($request['liked']));
        return like_state($post, $liker());
    });
});

add_shortcode('counterfoil_like', fn(): string =>
    '<button type="button" class="counterfoil-like" aria-pressed="false" hidden>♥ <span></span></button>');
