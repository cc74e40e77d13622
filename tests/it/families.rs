//! Families, tables and days as an application configures them; no server takes part.

use crate::support::*;

const SECOND: Duration = secs(1);
const HOUR: Duration = secs(3600);

fn table() -> Table {
    Table::upsert("t").key("k", Text).value("n")
}

/// A table for ids of a shop and a day.
fn days() -> Table {
    Table::upsert("visitors")
        .key("store_id", Unsigned)
        .key("day", Date)
        .value("count")
}

#[test]
fn an_invalid_setting_is_named() {
    let buffered = || Family::buffered("shop", "views");
    let cached = || Family::cached("shop", "votes");
    let series = || Family::series("shop", "hits");
    let windows = |windows: &[(Precision, u32)]| series().windows(windows.iter().copied()).build();
    let activity = || Family::activity("forum", "online");
    let layers = |window, layer| activity().window(window, layer);
    let visitors = || Family::visitors("shop", "visitors");
    let in_table = |table| buffered().table(table).build();
    let hours = |kind| Table::upsert("hourly").key("hour", kind).value("n");
    let hourly = |kind| {
        let kept = series().keep([Precision::HOUR]);
        kept.table(hours(kind).key("page", Text))
    };
    let at = |offset: &str| in_table(hours(DateTime).utc_offset(offset));
    let keyed = |name: &str| Table::update(name).key("id", Text);
    let (settle, separator) = (Durability::Settle(secs(0)), table().separator('|'));
    for (built, wrong) in [
        (Family::cached("Shop", "x").build(), "namespace \"Shop\""),
        (Family::buffered("x", "v/i").build(), "family \"v/i\""),
        (Family::series("", "x").build(), "namespace \"\""),
        (Family::cached("s".repeat(65), "x").build(), "namespace"),
        (buffered().partitions(0).build(), "partitions 0"),
        (visitors().partitions(5000).build(), "partitions 5000"),
        (buffered().sync_hits(0).build(), "sync_hits 0"),
        (cached().sync_time(secs(0)).build(), "sync_time 0ns"),
        (buffered().sync_time(48 * HOUR).build(), "sync_time 172800s"),
        (buffered().durability(settle).build(), "durability 0ns"),
        (buffered().max_pending(0).build(), "max_pending 0"),
        (cached().retain(25 * HOUR).build(), "retain 90000s"),
        (cached().min(2).max(1).build(), "min 2"),
        (cached().max(1 << 53).build(), "max 9007199254740992"),
        (windows(&[]), "precisions 0 is not 1 to 16"),
        (
            windows(&[(Precision::Seconds(0), 1)]),
            "seconds of a slice 0",
        ),
        (
            windows(&[(Precision::Seconds(u32::MAX), 1)]),
            "seconds of a slice 4294967295",
        ),
        (windows(&[(Precision::Day, 0)]), "slices of day 0"),
        (windows(&[(Precision::Day, 1001)]), "slices of day 1001"),
        (
            windows(&[(Precision::Day, 1), (Precision::Day, 2)]),
            "day twice",
        ),
        (
            series().keep([Precision::Month]).build(),
            "keep month is not one of the windows",
        ),
        (
            series().time_zone("Europe/Atlantis").build(),
            "time_zone time zone \"Europe/Atlantis\"",
        ),
        (
            series().time_zone("Etc/Unknown").build(),
            "time_zone time zone \"Etc/Unknown\"",
        ),
        (series().table(table()).build(), "table is given"),
        (activity().table(table()).build(), "table is given"),
        (
            series().keep([Precision::Day]).table(separator).build(),
            "table has a separator",
        ),
        (
            series().keep([Precision::Day]).table(days()).build(),
            "column store_id that cannot hold \"2014-09-01\" of kept ids: it is Unsigned, and Date, Text, \
             Char would fit",
        ),
        (
            hourly(Date).build(),
            "column hour that cannot hold \"1410134400\" of kept ids: it is Date, and Unsigned, Signed, \
             DateTime, Text, Char would fit",
        ),
        (layers(secs(0), SECOND).build(), "layers 0 is not 1"),
        (layers(HOUR, secs(0)).build(), "layer 0ns"),
        (
            layers(HOUR, Duration::from_nanos(1_000_001)).build(),
            "layer 1.000001ms is not in whole milliseconds",
        ),
        (
            layers(secs(600), secs(7)).build(),
            "window 600s is not a multiple",
        ),
        (layers(secs(1001), SECOND).build(), "layers 1001 is not 1"),
        (activity().stripes(0).build(), "stripes 0"),
        (
            layers(secs(630), secs(7)).keep_minutes(true).build(),
            "do not divide a minute",
        ),
        (visitors().remember(secs(0)).build(), "remember 0ns"),
        (visitors().sync_hits(0).build(), "sync_hits 0"),
        (in_table(Table::upsert("t").value("n")), "\"t\": no key"),
        (in_table(keyed("t")), "no value column"),
        (in_table(keyed("a`b").value("n")), "not a name"),
        (in_table(keyed("t").value("id")), "\"id\" is named twice"),
        (in_table(days().separator('-')), "cannot separate"),
        (
            in_table(days().utc_offset("+05:30")),
            "is for keys of the type DateTime",
        ),
        (
            at("Europe/Berlin"),
            "utc_offset \"Europe/Berlin\" is not like",
        ),
        (at("05:30"), "\"05:30\" is not like"),
        (at("+5:30"), "\"+5:30\" is not like"),
        (at("+14:01"), "\"+14:01\" is not like"),
        (at("+05:60"), "\"+05:60\" is not like"),
        (in_table(days().unchanged("count")), "\"count\" is named"),
    ] {
        refused(built, InvalidInput, wrong);
    }
    assert!(cached().min(1).max(1).build().is_ok());
}

#[test]
fn settings_bring_every_kind_back() {
    let table = || {
        let day = Table::update("shop.day").key("store", Unsigned);
        day.key("id", Uuid).value("n")
    };
    let kept = || {
        let kept = Table::update("shop.kept").key("before", Text);
        kept.key("name", Text).value("n")
    };
    let buffered = || Family::buffered("a", "b");
    let cached = || Family::cached("a", "b");
    let windows = [
        (Precision::HOUR, 3),
        (Precision::Month, 4),
        (Precision::Day, 5),
    ];
    let series = Family::series("a", "b").windows(windows).table(kept());
    let activity = || Family::activity("a", "b");
    let sliding = activity().window(60 * SECOND, 2 * SECOND).stripes(3);
    let visitors = Family::visitors("a", "b").remember(77 * SECOND);
    for family in [
        buffered().build(),
        buffered().partitions(9).wide(true).max_pending(7).build(),
        buffered()
            .durability(Durability::Settle(millis(70)))
            .build(),
        buffered()
            .durability(Durability::Immediate)
            .table(table().separator('|'))
            .build(),
        buffered().sync_hits(3).sync_time(SECOND).build(),
        buffered().table(self::table()).build(),
        cached().build(),
        cached().min(-5).max(1 << 52).table(table()).build(),
        cached().retain(SECOND).sync_time(SECOND).build(),
        series
            .keep([Precision::Day, Precision::HOUR])
            .time_zone("Europe/Berlin")
            .build(),
        activity().build(),
        sliding.keep_minutes(true).table(kept()).build(),
        visitors.sync_hits(3).table(table()).build(),
    ] {
        let family = family.unwrap();
        let written = family.settings();
        let read = Family::from_settings("a", "b", &written);
        assert_eq!(read.unwrap(), family, "{written}");
    }
}

#[test]
fn settings_that_are_not_understood_name_the_family_and_what_is_wrong() {
    let known = Family::cached("a", "b").build().unwrap().settings();
    for (from, to, what) in [
        ("cached", "sampled", "unknown variant `sampled`"),
        ("partitions", "parts", "unknown field `parts`"),
        ("\"partitions\":4", "\"partitions\":0", "partitions 0"),
        ("\"retain\":", "\"min\":\"none\",\"retain\":", "\"none\""),
        ("\"retain\":", "\"wide\":true,\"retain\":", "wide is not a"),
        ("{\"", "", "expected"),
    ] {
        let wrong = known.replacen(from, to, 1);
        let error = refused(Family::from_settings("a", "b", &wrong), Mismatch, what);
        assert!(error.to_string().contains("a/b"), "{error}");
    }
}

#[test]
fn an_id_fits_into_a_row_and_has_one_spelling() {
    let family = |family: FamilyBuilder<BufferedCounters>| family.build().unwrap();
    let buffered = || Family::buffered("shop", "views");
    let of = |kind| buffered().table(Table::upsert("t").key("k", kind).value("n"));
    let (plain, uuid) = (family(buffered()), family(of(Uuid)));
    let visits = family(buffered().table(days()));
    let spelled = "5d41402a-bc4b-4a76-b971-9d911017c592";
    for (family, id) in [
        (&plain, "e".repeat(255)),
        (&visits, "12345/2014-09-20".to_owned()),
        (&visits, "0/2000-02-29".to_owned()),
        (&uuid, spelled.to_owned()),
    ] {
        family.check_id(&id).unwrap();
    }
    for (family, id, wrong) in [
        (&plain, "", "0 bytes"),
        (&plain, &*"é".repeat(128), "256 bytes"),
        (&visits, "07/2014-09-20", "column store_id"),
        (&visits, "+7/2014-09-20", "column store_id"),
        (&visits, "/2014-09-20", "column store_id"),
        (&visits, "7/2014-9-20", "column day"),
        (&visits, "7/2014-02-30", "column day"),
        (&visits, "7/1900-02-29", "column day"),
        (&visits, "7", "nothing is left for column day"),
        (&visits, "7/2014-09-20/", "column day"),
        (&uuid, &spelled.to_uppercase(), "column k"),
        (&uuid, &spelled.replace('-', ""), "column k"),
        (&uuid, &format!("{{{spelled}}}"), "column k"),
        (&uuid, &spelled.replace("592", "59g"), "column k"),
        (&uuid, &spelled.replace("71-9", "719-"), "column k"),
    ] {
        refused(family.check_id(id), InvalidInput, wrong);
    }
}

#[test]
fn clients_in_other_languages_find_partitions_and_rows() {
    let windows = [(Precision::MINUTE, 5), (Precision::Day, 3)];
    let series = Family::series("n", "f").windows(windows).partitions(16);
    let series = series.build().unwrap();
    // the check value of CRC-32/ISO-HDLC
    assert_eq!(series.partition_of("123456789"), 0xcbf4_3926 % 16);
    assert_eq!(series.precisions(), [Precision::MINUTE, Precision::Day]);
    assert_eq!(series.separator(), '/');
    let visitors = Family::visitors("n", "f").table(days().separator(':'));
    let visitors = visitors.build().unwrap();
    assert_eq!((visitors.separator(), visitors.precisions()), (':', vec![]));
}

#[test]
fn a_day_has_one_spelling_and_begins_in_its_time_zone() {
    let leap: Day = "2000-02-29".parse().unwrap();
    assert_eq!(leap, Day::new(2000, 2, 29).unwrap());
    for wrong in [
        "1900-02-29",
        "2014-9-20",
        "2014-09-31",
        "0999-12-31",
        "10000-01-01",
        "+2014-09-20",
        "2014-09",
        "today",
    ] {
        refused(wrong.parse::<Day>(), InvalidInput, wrong);
    }
    refused(Day::new(2014, 13, 1), InvalidInput, "2014-13-01");
    let day = secs(86_400);
    for (time, expected) in [
        (UNIX_EPOCH, "1970-01-01"),
        (UNIX_EPOCH - Duration::from_nanos(1), "1969-12-31"),
        (UNIX_EPOCH + day, "1970-01-02"),
    ] {
        assert_eq!(Day::of(time).unwrap().to_string(), expected);
    }
    let early = Day::of(UNIX_EPOCH - 366 * 1000 * day);
    refused(early, InvalidInput, "1000 to 9999");
    let days = ["Pacific/Pago_Pago", "Pacific/Kiritimati"].map(Day::today_in);
    let [first, last] = days.map(|day| day.unwrap());
    assert!(first < last, "{first} {last}");
    refused(Day::today_in("Europe/Nowhere"), InvalidInput, "Nowhere");
}
