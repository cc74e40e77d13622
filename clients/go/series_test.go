package counterfoil

import (
	"encoding/json"
	"testing"
	"time"
)

func TestSlices(t *testing.T) {
	for _, one := range []struct{ zone, label, at, start, end string }{
		{"UTC", "3600s", "2014-09-20T10:20:30Z", "2014-09-20T10:00:00Z", "2014-09-20T11:00:00Z"},
		{"UTC", "7s", "1969-12-31T23:59:59Z", "1969-12-31T23:59:53Z", "1970-01-01T00:00:00Z"},
		{"Europe/Berlin", "day", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"Europe/Berlin", "month", "2026-12-31T23:30:00Z", "2026-12-31T23:00:00Z", "2027-01-31T23:00:00Z"},
		{"Europe/Berlin", "month", "2026-01-31T12:00:00Z", "2025-12-31T23:00:00Z", "2026-01-31T23:00:00Z"},
		// there is no midnight: the day begins at 01:00
		{"America/Sao_Paulo", "day", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"America/Sao_Paulo", "day", "2018-11-04T02:30:00Z", "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"},
		{"Asia/Beirut", "day", "2022-03-27T12:00:00Z", "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z"},
		// midnight is there twice
		{"America/Havana", "day", "2022-11-06T12:00:00Z", "2022-11-06T04:00:00Z", "2022-11-07T05:00:00Z"},
		{"America/Havana", "day", "2022-11-06T04:30:00Z", "2022-11-06T04:00:00Z", "2022-11-07T05:00:00Z"},
	} {
		zone, err := time.LoadLocation(one.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, one.at)
		if err != nil {
			t.Fatal(err)
		}
		var w window
		if err := json.Unmarshal([]byte(`["`+one.label+`", 2]`), &w); err != nil {
			t.Fatal(err)
		}
		start, end := w.slice(at.Unix(), zone)
		is := time.Unix(start, 0).UTC().Format(time.RFC3339) + " " + time.Unix(end, 0).UTC().Format(time.RFC3339)
		if should := one.start + " " + one.end; is != should {
			t.Errorf("%v: %s, should be %s", one, is, should)
		}
	}
}

func TestPrecision(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2014, 9, 8, 12, 0, 0, 0, berlin).Unix()
	for _, one := range []struct {
		window window
		keep   []string
		should string
	}{
		{window{"60s", 120}, nil, "60s 60 120 -"},
		{window{"60s", 120}, []string{"60s"}, "60s 60 120 */"},
		{window{"60s", 120}, []string{"60s", "day"}, "60s 60 120 60s/*/"},
		{window{"day", 31}, []string{"day"}, "day 1410127200-1410213600 31 2014-09-08/"},
		{window{"month", 2}, []string{"60s", "month"}, "month 1409522400-1412114400 2 month/2014-09-01/"},
	} {
		if is := one.window.precision(one.keep, now, berlin); is != one.should {
			t.Errorf("%s, should be %s", is, one.should)
		}
	}
}

func TestCodes(t *testing.T) {
	for text, should := range map[string]string{
		"OOM command not allowed when used memory > 'maxmemory'.":                                                            "OOM",
		"ERR Error running script (call to f_1234): @user_script:12: @user_script: 12: -OOM command not allowed":             "OOM",
		"ERR Error running script (call to f_1234): @user_script:12: @user_script: 12: WRONGTYPE Operation against a key":    "WRONGTYPE",
		"ERR Error running script (call to f_1234): @user_script:12: user_script:12: attempt to compare number with boolean": "ERR",
		"ERR max number of clients reached": "BUSY",
	} {
		if is := codeOf(redisError(text)); is != should {
			t.Errorf("%s: %s", text, is)
		}
	}
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}
