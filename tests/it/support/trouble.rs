//! Trouble for a pair: cut networks, forgotten scripts, a killed database, and reconcilers that
//! die.

use sqlx::mysql::MySqlConnectOptions;

use crate::support::*;

/// Starts a reconciler in its own runtime, whose shutdown drops the tasks at any point.
pub fn doomed<F>(
    redis: redis::Client,
    mysql: Arc<MySqlConnectOptions>,
    open: fn(Counterfoil) -> F,
) -> Runtime
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let doomed = threads(1);
    doomed.spawn(async move {
        let store = MysqlStore::new((*mysql).clone()).unwrap();
        // cut off before it could begin
        let Ok(redis) = redis.get_connection_manager().await else {
            return;
        };
        let counterfoil = patient(Counterfoil::new(redis, store));
        // the database may be unavailable
        while open(counterfoil.clone()).await.is_err() {
            pause(5).await;
        }
        let _reconciler = loop {
            if let Ok(reconciler) = counterfoil.reconciler().lease(None).start().await {
                break reconciler;
            }
        };
        std::future::pending::<()>().await;
    });
    doomed
}

/// Runs a reconciler on each side of the network through about a quarter of a second of trouble,
/// and shuts them down.
pub async fn round<F>(
    number: usize,
    random: &mut StdRng,
    (pair, proxy, mysql): (&Pair, &Proxy, &MysqlServer),
    open: fn(Counterfoil) -> F,
) where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let reconcilers = [pair.redis.client(), proxy.client()]
        .map(|redis| doomed(redis, pair.pool.connect_options(), open));
    let cut = if number.is_multiple_of(2) {
        Proxy::cut_requests_after
    } else {
        Proxy::cut_replies_after
    };
    for _ in 0..random.random_range(1..4) {
        pause(random.random_range(20..120)).await;
        cut(proxy, random.random_range(0..3000));
    }
    if number.is_multiple_of(3) {
        pair.redis.does("SCRIPT FLUSH").await;
    }
    if number % 5 == 4 {
        mysql.kill();
        pause(30).await;
        mysql.start_again().await;
    }
    pause(random.random_range(20..250)).await;
    reconcilers
        .into_iter()
        .for_each(Runtime::shutdown_background);
    proxy.call_off();
}
