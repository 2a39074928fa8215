# Reads names of files below a folder, and writes their text as JSON lines: see debian_text.sh.
#   perl debian_text.pl FOLDER OUTPUT MEGABYTES <NAMES
use strict;
use warnings;
use Digest::MD5 qw(md5 md5_hex);
use Encode qw(decode encode FB_CROAK);

my ($folder, $output, $megabytes) = @ARGV;
my %named = (
  amp => '&', lt => '<', gt => '>', quot => '"', apos => "'", nbsp => ' ', para => '', copy => "\x{a9}",
  mdash => "\x{2014}", ndash => "\x{2013}", hellip => "\x{2026}", lsquo => "\x{2018}", rsquo => "\x{2019}",
  ldquo => "\x{201c}", rdquo => "\x{201d}", rarr => "\x{2192}", larr => "\x{2190}", times => "\x{d7}",
  middot => "\x{b7}",
);

sub entity {
  my ($name) = @_;
  return $named{$name} if exists $named{$name};
  my $code = $name =~ /^#x([0-9a-f]{1,6})$/i ? hex $1 : $name =~ /^#([0-9]{1,7})$/ ? $1 : 0;
  return $code > 8 && $code < 0x110000 && ($code < 0xd800 || $code > 0xdfff) ? chr $code : "&$name;";
}

sub text_of_html {
  my ($text) = @_;
  $text =~ s/<!--.*?-->//gs;
  $text =~ s/<(script|noscript|style|head|nav|svg|footer|select|form|button)\b.*?<\/\1\s*>//gis;
  my @verbatim;  # blocks whose blanks matter
  $text =~ s/<pre\b[^>]*>(.*?)<\/pre\s*>/push @verbatim, $1; "\n\n\x{1}$#verbatim\x{1}\n\n"/gies;
  $text =~ s/\s+/ /g;
  $text =~ s/<(?:br|li|tr|dt|dd)\b[^>]*>/\n/gi;
  $text =~ s/<\/t[dh]\s*>/  /gi;
  $text =~ s/<\/?(?:p|div|h[1-6]|ul|ol|dl|table|section|article|blockquote|main|hr|summary|details)\b[^>]*>
    /\n\n/gix;
  $text =~ s/\x{1}(\d+)\x{1}/$verbatim[$1]/g;
  $text =~ s/<[^>]*>//g;
  $text =~ s/&(#?\w{2,8});/entity($1)/ge;
  $text =~ s/\x{b6}//g;  # the sign behind each heading that links to it
  return $text;
}

# Files that only list names, are in another language, or are there a second time
my $passed_over = qr{/(?:genindex|py-modindex|searchindex|search|sitemap|print|all|index-all|all\w+-\w+
    |package-(?:tree|use|summary))(?:-[A-Z0-9]+)?\.html
  |/translations/|/index-files/|/class-use/|/src/[a-z_]+/.*\.rs\.html|/unstable-book/compiler-flags/|/licenses?/
  |/(?:da|de|es|fr|ja|ko|tr|zh-cn|pt-br)/|/debian-handbook/html/(?!en-US)|/_sources/.*\.html
  |/html/(?:core|alloc)/|/wx-[0-9.]+/|COPYING|LICENSE|/CHANGES|[Cc]hangelog}x;

my (%seen, %kind, $bytes, $documents, $repeated);
$bytes = $documents = $repeated = 0;
my $left = $megabytes * 1e6;  # bytes of train.jsonl
open my $train, '>', "$output/train.jsonl.new" or die "$output/train.jsonl.new: $!\n";
open my $validation, '>', "$output/validation.jsonl.new" or die "$output/validation.jsonl.new: $!\n";
for my $name (sort { md5($a) cmp md5($b) } grep { chomp; !/$passed_over/ } <STDIN>) {
  my $path = "$folder/$name";
  my $file;
  if ($name =~ /\.(?:gz|dz)$/) { open $file, '-|', 'gzip', '-cd', '--', $path or die "$path: $!\n" }
  else { open $file, '<', $path or die "$path: $!\n" }
  my $raw = do { local $/; <$file> };
  close $file;
  my $text = eval { decode('UTF-8', $raw, FB_CROAK) };
  next unless defined $text;
  $text =~ s/\r\n?/\n/g;
  $text = text_of_html($text) if $name =~ /\.html(?:\.gz)?$/;
  $text =~ s/[\x00-\x08\x0b-\x1f\x7f]//g;
  $text =~ s/[ \t]+$//gm;
  my @kept;
  for my $paragraph (split /\n{2,}/, $text) {
    next if $paragraph eq '';
    if (length $paragraph >= 60) {
      my $key = substr md5(encode('UTF-8', $paragraph)), 0, 8;
      if ($seen{$key}++) { $repeated += length $paragraph; next }
    }
    push @kept, $paragraph;
  }
  # A dictionary or a book is many documents
  my @parts = ('');
  for (@kept) {
    push @parts, '' if length $parts[-1] > 200_000;
    $parts[-1] .= ($parts[-1] eq '' ? '' : "\n\n") . $_;
  }
  for my $part (@parts) {
    next if length $part < 500;
    my $line = encode('UTF-8', $part);
    my $length = length $line;
    $line =~ s/([\\"])/\\$1/g;
    $line =~ s/\n/\\n/g;
    $line =~ s/\t/\\t/g;
    $line = qq({"text":"$line"}\n);
    my $held_out = hex(substr md5_hex($name), -4) % 100 == 0;
    $left = 0 if !$held_out && length $line > $left;  # from the first document on that is too much
    next unless $held_out || $left;
    $left -= length $line unless $held_out;
    print { $held_out ? $validation : $train } $line;
    $bytes += $length;
    ++$documents;
    my ($package) = $name =~ m{^usr/(?:share|src)/((?:doc/)?[^/]+)};
    $kind{$package // $name} += $length;
  }
}
close $train or die "$output/train.jsonl.new: $!\n";
close $validation or die "$output/validation.jsonl.new: $!\n";
rename "$output/$_.jsonl.new", "$output/$_.jsonl" or die "$output/$_.jsonl: $!\n" for 'train', 'validation';
printf "%6.1f MB %s\n", $kind{$_} / 1e6, $_ for sort { $kind{$b} <=> $kind{$a} } keys %kind;
printf "%d documents, %.1f MB; %.1f MB of repeated paragraphs left out\n", $documents, $bytes / 1e6, $repeated / 1e6;
