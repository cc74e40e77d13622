#!/usr/bin/env perl
# A client in a language that has no package, written from lua/README.md with what Perl brings: all five kinds, over a
# standalone Redis. It reads calls, one a line, and prints what each returns. The calls are the functions at the end:
#
#     echo 'add product_views product/7 1' | counterfoil.pl SOCKET NAMESPACE lua/v1 http://localhost:9292
use v5.30;
use warnings;
use Compress::Zlib qw(crc32);
use Digest::SHA qw(sha1_hex);
use HTTP::Tiny;
use IO::Socket::UNIX;
use JSON::PP qw(decode_json);
use Socket qw(SOL_SOCKET SO_RCVTIMEO);
use Time::HiRes qw(time sleep);
my ($socket, $namespace, $scripts, $daemon) = @ARGV;
my ($caller, $n, $redis, %source, %family) = (random(8), 0);
sub random { open my $file, '<:raw', '/dev/urandom' or die; read $file, my $bytes, $_[0]; unpack 'H*', $bytes }

# Redis: a reply, or an exception. LOST: the call may have been executed. UNSENT: it was not
sub lost { undef $redis; die "LOST no reply\n" }
sub reply {
  my ($type, $rest) = (<$redis> // lost()) =~ /^(.)(.*)\r\n\z/s or lost();
  return { error => $rest } if $type eq '-';
  return [map { reply() } 1 .. $rest] if $type eq '*';
  return $rest if $type ne '$';
  read($redis, my $text, $rest + 2) == $rest + 2 or lost();
  substr $text, 0, $rest;
}

sub command {
  $redis //= IO::Socket::UNIX->new(Peer => $socket) // die "UNSENT no connection: $!\n";
  setsockopt $redis, SOL_SOCKET, SO_RCVTIMEO, pack('l!l!', 2, 0);
  print {$redis} '*' . @_ . "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @_ or lost();
  $redis->flush or lost();
  reply();
}

sub script {
  my ($name, $keys, @args) = @_;
  $source{$name} //= do { local (@ARGV, $/) = "$scripts/$name.lua"; <> };
  my @rest = (scalar @$keys, @$keys, @args);
  my $reply = command('EVALSHA', sha1_hex($source{$name}), @rest);
  $reply = command('EVAL', $source{$name}, @rest) if ref $reply eq 'HASH' && $reply->{error} =~ /^NOSCRIPT/;
  ref $reply eq 'HASH' ? die "$reply->{error}\n" : $reply;
}

# The family
sub keys_of { my ($name, $partition, @keys) = @_; map {"cf1:{$namespace/$name/$partition}:$_"} @keys }
sub checked { my ($family, $id) = @_; $id =~ /\A(?:$family->{ids})\z/ ? $id : die "NOTCOUNTED BADID $id\n" }
sub family {
  my ($name) = @_;
  return $family{$name} if $family{$name} && time < $family{$name}{until};
  my ($asked, @keys) = (time, keys_of($name, 0, qw(calls calls_before requests requests_before)));
  while (1) {
    my $until = time + 30;
    my ($status, $epoch, $generation, $kind, $partitions, $description) = @{ script('family_epoch', \@keys, ('') x 4) };
    return $family{$name} = { %{ decode_json($description) }, epoch => $epoch, generation => $generation,
      partitions => $partitions, until => $until } if $status eq 'OK';
    script('family_want', ['cf1:wanted'], "$namespace/$name");
    die "NOTCOUNTED temporary: no daemon has configured $namespace/$name\n" if time > $asked + 3;
    sleep 0.05;
  }
}

# Makes a counting call until its outcome is known, and returns the last word of its reply. `make` returns keys and arguments.
sub count {
  my ($script, $name, $make) = @_;
  my ($give_up, $maybe) = (time + 10, 0);
ANEW: {
    my $family = eval { family($name) } // die $@ =~ s/^(?!NOTCOUNTED)/NOTCOUNTED /r;
    my ($keys, @args) = $make->($family);
    my @keys = (keys_of($name, 0, qw(calls calls_before)), @$keys);
    my @fence = ($caller, $n += 1 + hex(random(3)) % 2**20, $family->{epoch}, '');
    my $end = $family->{until} + 30 < $give_up ? $family->{until} + 30 : $give_up;
    while (1) {
      my $words = eval { script($script, \@keys, @fence, @args) };
      return $words->[-1] =~ s/^1://r if $words && $words->[0] =~ /^(?:OK|DUP)$/;
      if ($words) {
        ($caller, $family{$name}) = (random(8));
        redo ANEW if !$maybe && $words->[0] =~ /^(?:MISMATCH|EXPIRED)$/;
        die "UNKNOWN $words->[0]\n";
      }
      my $is_over = $@ !~ /^(?:LOST|UNSENT|LOADING|BUSY|CLUSTERDOWN|NOREPLICAS|TRYAGAIN|READONLY|MASTERDOWN)/;
      $maybe ||= $@ =~ /^(?:LOST|NOPERM|ERR)/;
      undef $redis if $@ =~ /^(?:READONLY|MASTERDOWN)/; # after a failover
      die $maybe ? 'UNKNOWN ' : 'NOTCOUNTED ', $@ if $is_over || time > $end;
      sleep 0.05;
    }
  }
}

# The calls
sub add { # FAMILY ID DELTA [REQUEST [GENERATION]]
  my ($name, $id, $delta, $request, $generation) = @_;
  count('buffered_add', $name, sub { my ($family) = @_;
    my $home = crc32(checked($family, $id) && $request && $family->{wide} ? $request : $id) % $family->{partitions};
    my @requests = $request ? keys_of($name, 0, qw(requests requests_before)) : ();
    [keys_of($name, $home, qw(buffer meta)), @requests], $request ? 1 : 0, 1, 1, $id, $delta,
      $request ? (1, $request, $generation // $family->{generation}) : () });
}

sub incr { # FAMILY ID CHANGE
  my ($name, $id, $change) = @_;
  while (1) {
    my @keys;
    my $word = count('cached_incr', $name, sub { my ($family) = @_;
      @keys = keys_of($name, crc32(checked($family, $id)) % $family->{partitions}, qw(base buffer batch meta));
      \@keys, 0, 1, $id, $change });
    return $word if $word !~ /^MISS:(.*)/;
    my $seeded = script('cached_seed', [keys_of($name, 0, 'calls'), $keys[0]], '', '', $id, $1, value($name, $id) // '-');
    return $seeded->[1] if $seeded->[1] =~ /^(?:NOROW|BEYOND)$/;
  }
}

sub count_in { # FAMILY NAME N [AT_MS]: of a series
  my ($name, $series, $hits, $at) = @_;
  count('series_add', $name, sub { my ($family) = @_;
    my @keys = (qw(buffer meta names idle), map {"series:$_:$series"} @{ $family->{labels} });
    my $partition = crc32(checked($family, $series)) % $family->{partitions};
    [keys_of($name, 0, qw(calendar:day calendar:month)), keys_of($name, $partition, @keys)], $series, $hits, $at // '' });
}

sub touch { # FAMILY PAGE VISITOR
  my ($name, $page, $visitor) = @_;
  count('activity_touch', $name, sub { my ($family) = @_;
    my $stripe = crc32($visitor) % $family->{stripes};
    my $partition = (crc32(checked($family, $page)) + $stripe) % $family->{partitions};
    [keys_of($name, $partition, qw(buffer meta), "views:$stripe:$page", "visitors:$stripe:$page")],
      $family->{stripes}, 1, $page, 1, 1, $visitor });
}

sub first_visit { # FAMILY SCOPE DAY VISITOR
  my ($name, $scope, $day, $visitor) = @_;
  count('visitors_first', $name, sub { my ($family) = @_;
    my $id = checked($family, $scope . $family->{separator} . $day);
    [keys_of($name, crc32($id) % $family->{partitions}, qw(buffer meta), "seen:$id")], 1, $id, 1, $visitor });
}

sub value { # FAMILY ID: what MySQL and Redis have together, from the daemon
  my ($name, $id) = @_;
  my $query = HTTP::Tiny->new->www_form_urlencode({ family => "$namespace/$name", id => $id });
  my $reply = HTTP::Tiny->new->get("$daemon/api/v1/values?$query");
  $reply->{success} ? decode_json($reply->{content})->{values}[0] : die "NOTCOUNTED the daemon: $reply->{content}\n";
}

my %calls = (add => \&add, incr => \&incr, count_in => \&count_in, touch => \&touch, first_visit => \&first_visit, value => \&value);
$| = 1;
while (my ($call, @args) = split ' ', <STDIN> // last) {
  say eval { $calls{$call}->(@args) // 'none' } // $@ =~ s/\n\z//r;
}
