// The formats that the prepare program reads, compressed and not, and what it says of damaged ones.
#include <zlib.h>
#include <zstd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/input_file.h"
#include "data/manifest.h"
#include "data/sample_encoder.h"
#include "data/samples.h"
#include "tests/data/prepare_process.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstandard(const std::string& text) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the program zstd does
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

const std::string kLines =
    "{\"text\":\"one\"}\n\n{\"prompt\":\"2+2=\",\"completion\":\"4\"}\r\n"
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}";
const std::string kLinesAsText =
    "one|2+2=4|<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n|";

TEST_F(Prepare, APointerOfGitLfsIsNoInput) {
  for (const char* name : {"a.txt", "a.jsonl", "a.jsonl.gz", "a.txt.zst"}) {
    write(name, kLfsPointer);
    expect_refusal({name, "--output", "d"},
                   {std::string(name) + " is a Git LFS pointer", "988097824 bytes", "lfs pull"});
  }
}

TEST_F(Prepare, ReadsEveryFormatAndCompression) {
  write("a.jsonl", kLines);
  write("a.jsonl.gz", gzip(kLines));
  write("a.jsonl.zst", zstandard(kLines));
  write("t.txt", "a text");
  write("t.txt.gz", gzip("a text"));
  write("t.zst", zstandard("a text"));
  const size_t half = kLines.size() / 2;  // inputs in several parts, as bgzip, pigz and pzstd write them
  write("parts.jsonl.gz", gzip(kLines.substr(0, half)) + gzip("") + gzip(kLines.substr(half)));
  write("parts.jsonl.zst",
        zstandard(kLines.substr(0, half)) + zstandard("") + zstandard(kLines.substr(half)));
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "t.txt", "t.txt.gz", "t.zst",
                           "parts.jsonl.gz", "parts.jsonl.zst"}) {
    const Result result = run({name, "--output", "d", "--force", "--chat-template", "chatml"});
    EXPECT_EQ(result.status, 0) << result.error;
    const bool lines = std::string_view(name).find(".jsonl") != std::string_view::npos;
    EXPECT_EQ(text_of("d"), lines ? kLinesAsText : "a text|") << name;
    const Manifest manifest = *read_manifest(folder_ / "d");
    EXPECT_EQ(manifest.chat_template, lines ? "chatml" : "");
    EXPECT_EQ(manifest.documents, lines ? 3 : 1);
    EXPECT_EQ(manifest.counted_tokens, lines ? 4 + 2 + 12 : 7);
    EXPECT_EQ(result.out.find("counted 18, shards 1") != std::string::npos, lines) << result.out;
    const TokenStream stream = TokenStream::open(folder_ / "d");
    EXPECT_EQ(stream.documents()->count(), manifest.documents);
    EXPECT_EQ(stream.documents()->counted_tokens(), manifest.counted_tokens);
  }
}

TEST_F(Prepare, ReadsStandardInputInTheFormatThatIsNamed) {
  write("in", kLines);
  const auto piped = [&](const std::string& options) {
    return testing::run_shell("\"$0\" < in - --output d " + options, {PREPARE_BINARY}, {.folder = folder_});
  };
  EXPECT_EQ(piped("--format jsonl --chat-template chatml").status, 0);
  EXPECT_EQ(text_of("d"), kLinesAsText);
  EXPECT_EQ(piped("--format text --force").status, 0);
  EXPECT_EQ(text_of("d"), kLines + "|");
  const Result unnamed = piped("--force");
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_NE(unnamed.error.find("standard input"), std::string::npos) << unnamed.error;
  EXPECT_NE(unnamed.error.find("--format jsonl"), std::string::npos) << unnamed.error;
  write("in", "{\"text\":\"x\"}\n{\"text\"");
  const Result cut = piped("--format jsonl --force");
  EXPECT_NE(cut.error.find("standard input:2:8: not JSON"), std::string::npos) << cut.error;
}

TEST_F(Prepare, TellsWhereACompressedInputIsDamaged) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += fmt::format("{{\"text\":\"{}\"}}\n", i * i * 7919 % 10007);
  for (const auto& [name, bytes] :
       {std::pair("a.jsonl.gz", gzip(lines)), std::pair("a.jsonl.zst", zstandard(lines))}) {
    for (size_t count = 1; count < bytes.size(); count += bytes.size() / 7) {
      write(name, bytes.substr(0, count));
      expect_refusal({name, "--output", "d"}, {name, "is truncated"});
    }
    write(name, bytes.substr(0, bytes.size() - 1));
    expect_refusal({name, "--output", "d"}, {name, "is truncated"});
    write(name, "{\"text\":\"not compressed\"}\n");
    expect_refusal({name, "--output", "d"}, {name, "damaged"});
    write(name, bytes + "more");
    expect_refusal({name, "--output", "d"},
                   {name, std::string_view(name).ends_with("gz") ? "damaged" : "a.jsonl"});
    std::string flipped = bytes;
    flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 4);
    write(name, flipped);
    expect_refusal({name, "--output", "d"}, {name});
    write(name, "");
    expect_refusal({name, "--output", "d"}, {name, "holds no documents"});
  }
  write("t.txt.gz", gzip(""));
  expect_refusal({"t.txt.gz", "--output", "d"}, {"t.txt.gz is empty"});
  write("t.json.gz", gzip("{}"));
  expect_refusal({"t.json.gz", "--output", "d"}, {"t.json.gz is JSON"});
}

TEST_F(Prepare, NamesTheLineOfADocumentThatIsWrong) {
  const auto expect = [&](const std::string& line, std::initializer_list<std::string_view> words) {
    std::string content;  // more than a piece before it
    for (int i = 0; i < 30000; ++i) content += "{\"text\":\"a text that fills the lines before it\"}\n";
    write("a.jsonl", content + line + "\n{\"text\":\"last\"}\n");
    expect_refusal({"a.jsonl", "--output", "d", "--chat-template", "chatml"}, words);
  };
  expect("{\"text\":\"x", {"a.jsonl:30001:", "not JSON"});
  expect("{\"text\":\"\xe2\x82\"}", {"a.jsonl:30001:", "UTF-8"});
  expect("{\"text\":\"" + std::string(1, '\0') + "\"}", {"a.jsonl:30001:10: not JSON: a zero byte"});
  expect("{\"messages\":" + std::string(1000, '[') + "}", {"a.jsonl:30001:", "nested more than 64 deep"});
  expect("{\"messages\":[{\"role\":\"human\",\"content\":\"x\"}]}", {"a.jsonl:30001: message 1", "human"});
  expect("{\"prompt\":\"x\"}", {"a.jsonl:30001", "'completion'"});
}

TEST_F(Prepare, GivesTheSameFilesWithAnyNumberOfThreads) {
  std::string lines;
  for (int i = 0; lines.size() < 6'000'000; ++i)
    lines += i % 3 == 0   ? fmt::format("{{\"text\":\"document {} {}\"}}\n", i,
                                        std::string(static_cast<size_t>(i % 997), 'x'))
             : i % 3 == 1 ? fmt::format("{{\"prompt\":\"{}+1=\",\"completion\":\"{}\"}}\n", i, i + 1)
                          : fmt::format(
                                "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}},"
                                "{{\"role\":\"assistant\",\"content\":\"{}\"}}]}}\n",
                                i, i % 5 ? "yes" : "");
  write("a.jsonl", lines);
  write("long.jsonl", "{\"text\":\"" + std::string(5'000'000, 'y') + "\"}\n{\"text\":\"short\"}");
  const std::vector<std::string> arguments = {
      "a.jsonl",         "long.jsonl",
      "--shard-tokens",  "1M",
      "--chat-template", "chatml",
      "--tokenizer",     TESSERA_SOURCE_DIR "/tests/fixtures/tokenizers/qwen2.json",
      "--output"};
  const auto made_by = [&](const char* program, std::vector<std::string> before, const char* folder) {
    before.insert(before.end(), arguments.begin(), arguments.end());
    before.push_back(folder);
    const Result result = testing::run_process(program, before, {.folder = folder_});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_NE(result.error.find("samples were dropped"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("a.jsonl:6, a.jsonl:21, a.jsonl:36 and "), std::string::npos) << result.error;
    return read_manifest(folder_ / folder)->files;
  };
  const FileChecksums all = made_by(PREPARE_BINARY, {}, "all");
  EXPECT_GT(all.size(), 4u);
  EXPECT_EQ(all, made_by("/usr/bin/taskset", {"--cpu-list", "0", PREPARE_BINARY}, "one"));
}

TEST_F(Prepare, DropsOrRefusesSamplesWithoutACountedToken) {
  write("a.jsonl", "{\"text\":\"x\"}\n{\"prompt\":\"a\",\"completion\":\"\"}\n");
  const Result result = run({"a.jsonl", "--output", "d"});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.error.find("1 sample was dropped"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("a.jsonl:2"), std::string::npos) << result.error;
  EXPECT_EQ(read_manifest(folder_ / "d")->dropped_samples, 1);
  expect_refusal({"a.jsonl", "--output", "e", "--strict"}, {"a.jsonl:2", "completion", "empty"});
  write("b.jsonl", "{\"prompt\":\"a\",\"completion\":\"\"}\n");
  const Result none = run({"b.jsonl", "--output", "e"});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.error.find("no sample"), std::string::npos) << none.error;
  EXPECT_EQ(names().count("e"), 0u);
  EXPECT_EQ(run({"b.jsonl", "--output", "e", "--loss", "all"}).status, 0);
  EXPECT_EQ(text_of("e"), "a|");
}

// "x" has no token.
TEST_F(Prepare, BytesWithoutATokenStopOrAreCounted) {
  write("t.json", small_tokenizer(R"([{"op": "add", "path": "/model/vocab/\u010a", "value": 8}])"));
  write("a.jsonl",
        "{\"text\":\"ab\"}\n\n{\"text\":\"ab\\ncxd\\nxx\"}\n{\"prompt\":\"a\",\"completion\":\"xb\"}\n");
  std::string long_text;
  while (long_text.size() < 3'000'000) long_text += "ab cd\nabcd ab ";
  const auto line = std::ranges::count(long_text, '\n') + 2;
  write("long.txt", long_text + "\ncxd\nab\n");
  const auto stops = [&](const char* name, int64_t at) {
    for (const bool named : {false, true}) {
      std::vector<std::string> arguments{name, "--tokenizer", "t.json", "--output", "d"};
      if (named) arguments.insert(arguments.end(), {"--bytes-without-token", "stop"});
      expect_refusal(arguments,
                     {fmt::format("{}:{}: ", name, at), "the byte 0x78", "--bytes-without-token skip"});
    }
  };
  stops("a.jsonl", 3);
  stops("long.txt", line);
  EXPECT_EQ(
      run({"a.jsonl", "long.txt", "--tokenizer", "t.json", "--output", "d", "--bytes-without-token", "skip"})
          .error.find("prepare: notice: 5 bytes"),
      0u);
  EXPECT_EQ(read_manifest(folder_ / "d")->skipped_bytes, 5);
  const auto stream = TokenStream::open(folder_ / "d");
  std::vector<int32_t> ids(12);
  stream.read(0, ids);
  // "cxd" without "x" is "cd", which is one token; as Hugging Face's library has it.
  EXPECT_EQ(ids, (std::vector<int32_t>{5, 9, 5, 8, 6, 8, 9, 0, 1, 9, 5, 4}));
  write("whole.txt", "ab\nabcd");
  ASSERT_EQ(
      run({"whole.txt", "--tokenizer", "t.json", "--output", "e", "--bytes-without-token", "skip"}).status,
      0);
  EXPECT_EQ(read_file(folder_ / "e/dataset.json").find("skipped_bytes"), std::string::npos);
  expect_error(
      [&] { TokenStream::open(folder_ / "long.txt", *load_tokenizer((folder_ / "t.json").string())); },
      {fmt::format("long.txt:{}: ", line), "the byte 0x78"});
}

TEST_F(Prepare, ShowsWhatCounts) {
  write("a.jsonl", kLines + "\n{\"messages\":[]}\n{\"text\":\"never shown\"}\n");
  const Result result = run({"a.jsonl", "--show", "4", "--chat-template", "chatml"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.out,
            "a.jsonl:1: tokens 4, counted 4\n[one<|endoftext|>]\n\n"
            "a.jsonl:3: tokens 6, counted 2\n2+2=[4<|endoftext|>]\n\n"
            "a.jsonl:4: tokens 66, counted 12, no end of a turn has a "
            "loss\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[Yo<|im_end|>]\n<|endoftext|>\n\n"
            "a.jsonl:5: dropped: no token counts\n");
  EXPECT_EQ(names(), std::set<std::string>{"a.jsonl"});
}

TEST_F(Prepare, ConversationsThatTheTemplateRefusesAreDroppedAndNamed) {
  write("t.jinja",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system, please') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content + '' }}{% endfor %}");
  const auto line = [](const std::string& role, const std::string& content) {
    return R"({"messages":[{"role":")" + role + R"(","content":")" + content +
           R"("},{"role":"assistant","content":"b"}]})" + "\n";
  };

  write("a.jsonl", line("user", "a") + line("system", "s") + line("user", "c") + line("system", "s"));
  const Result result = run({"a.jsonl", "--output", "d", "--chat-template", "t.jinja"});
  EXPECT_EQ(result.status, 0) << result.error;
  for (const char* part :
       {"2 conversations were dropped", "a.jsonl:2, a.jsonl:4", "no system, please", "--strict"})
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
  EXPECT_EQ(read_manifest(folder_ / "d")->documents, 2);
  EXPECT_EQ(read_manifest(folder_ / "d")->dropped_samples, 2);
  expect_refusal({"a.jsonl", "--output", "e", "--chat-template", "t.jinja", "--strict"},
                 {"a.jsonl:2", "no system, please"});
  const Result shown = run({"a.jsonl", "--show", "2", "--chat-template", "t.jinja"});
  EXPECT_NE(shown.out.find("a.jsonl:2: dropped: t.jinja:1"), std::string::npos) << shown.out;
  write("b.jsonl", line("system", "s") + R"({"text":"x"})" + "\n");
  const Result none = run({"b.jsonl", "--output", "e", "--chat-template", "t.jinja"});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.error.find("refuses every conversation"), std::string::npos) << none.error;
  EXPECT_EQ(names().count("e"), 0u);
}

TEST_F(Prepare, ThoughtsThatTheTemplateDoesNotReadAreSaidToBeLost) {
  write(
      "a.jsonl",
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"so"}]})");
  const Result result = run({"a.jsonl", "--output", "d", "--chat-template", "chatml"});
  EXPECT_EQ(result.status, 0) << result.error;
  for (const char* part : {"1 conversation has", "lost", "reasoning_content", "a.jsonl:1"})
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
}

// A piece of an input is 1 MiB: texts that end with one, or a byte before or after.
TEST_F(Prepare, ATextMayEndWhereAPieceDoes) {
  // The last one takes a text whole.
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers["bytes"] = load_tokenizer("bytes");
  for (const char* kind : {"gpt2.json", "llama2.json"})
    tokenizers[kind] = load_tokenizer(tokenizer_fixture(kind).string());
  tokenizers["uncut"] = load_tokenizer(
      write("uncut.json",
            small_tokenizer(R"([{"op":"replace","path":"/pre_tokenizer/use_regex","value":false}])"))
          .string());
  const auto read = [&](const std::string& name, const Tokenizer& tokenizer, int64_t documents) {
    const SampleEncoder encoder({.tokenizer = &tokenizer});
    std::vector<int32_t> ids;
    read_pieces(folder_ / name, InputFormat::kByName,
                {.on_piece =
                     [&](const Piece& piece) {
                       const EncodedPiece made = encoder.encode(piece);
                       documents -= made.documents;
                       ids.insert(ids.end(), made.ids.begin(), made.ids.end());
                       return true;
                     },
                 .cut = [&](std::string_view part) { return tokenizer.last_cut(part); }});
    EXPECT_EQ(documents, 0) << name;
    return ids;
  };
  constexpr size_t kPiece = 1 << 20;
  for (const size_t size : {kPiece - 1, kPiece, kPiece + 1, 3 * kPiece}) {
    std::string text;
    while (text.size() < size) text += "ab cd ";
    text.resize(size);
    const std::string half(size / 2 - 14, 'a');
    const std::string lines = "{\"text\":\"" + half + "\"}\n{\"text\":\"" + half +
                              std::string(size - 2 * half.size() - 24, 'b') + "\"}\n";
    ASSERT_EQ(lines.size(), size);
    write("a.txt", text), write("a.txt.gz", gzip(text)), write("a.txt.zst", zstandard(text));
    write("a.jsonl", lines), write("a.jsonl.gz", gzip(lines)), write("a.jsonl.zst", zstandard(lines));
    for (const auto& [kind, tokenizer] : tokenizers) {
      if (size > 2 * kPiece && kind != "bytes") continue;
      std::vector<int32_t> whole(tokenizer->before_text().begin(), tokenizer->before_text().end());
      tokenizer->encode(text, SpecialTokens::kAsText, whole);
      whole.insert(whole.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
      if (whole.back() != tokenizer->end_of_text()) whole.push_back(tokenizer->end_of_text());
      for (const char* name : {"a.txt", "a.txt.gz", "a.txt.zst"})
        EXPECT_TRUE(read(name, *tokenizer, 1) == whole) << name << " " << kind << " " << size;
      if (kind == "bytes")
        for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"}) read(name, *tokenizer, 2);
    }
  }
  const std::string exact(kPiece, 'x');
  write("in", exact);
  const Result piped = testing::run_process(
      "/bin/sh", {"-c", "\"" PREPARE_BINARY "\" - --format text --output d < in"}, {.folder = folder_});
  EXPECT_EQ(piped.status, 0) << piped.error;
  EXPECT_EQ(text_of("d"), exact + "|");
}

TEST_F(Prepare, ALineLongerThanTheLimitIsRefusedBeforeItIsParsed) {
  const auto read = [&](const std::string& content) {
    std::vector<int64_t> lines;
    const auto on_piece = [&](const Piece& piece) {
      for_each_line(piece, [&](std::string_view line, int64_t number) {
        lines.insert(lines.end(), {number, std::ssize(line)});
      });
      return true;
    };
    read_pieces(write("a.jsonl", content), InputFormat::kByName,
                {.on_piece = on_piece, .most_line_bytes = 3'000'000});
    return lines;
  };
  const std::string most(3'000'000, 'x');
  EXPECT_EQ(read("1\n" + most + "\n\n" + most), (std::vector<int64_t>{1, 1, 2, 3'000'000, 4, 3'000'000}));
  for (const char* after : {"", "\n", "\nx"})
    expect_error([&] { read("1\n\n" + most + "x" + after); }, {"a.jsonl:3: ", "3000000 bytes"});
}

TEST_F(Prepare, NamesOfSpecialTokensAreCountedAndReadAsAsked) {
  write("tokenizer.json", plain_tokenizer("qwen2"));
  write("a.jsonl", R"({"text":"x"})"
                   "\n"
                   R"({"text":"<|im_start|>user\nHi<|im_end|>"})"
                   "\n");
  for (const std::string special : {"text", "parse"}) {
    const Result result = run({"a.jsonl", "--tokenizer", "tokenizer.json", "--output", "d", "--force",
                               "--special-tokens", special});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_NE(result.error.find("2 names"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("a.jsonl:2"), std::string::npos);
    const int64_t tokens = read_manifest(folder_ / "d")->tokens;
    const auto tokenizer = load_tokenizer((folder_ / "tokenizer.json").string());
    const auto as = special == "text" ? SpecialTokens::kAsText : SpecialTokens::kMatched;
    EXPECT_EQ(tokens, std::ssize(tokenizer->encode("x")) +
                          std::ssize(tokenizer->encode("<|im_start|>user\nHi<|im_end|>", as)) + 2);
  }
}

TEST_F(Prepare, TheTemplateOfTheFolderWritesConversationsAndIsKept) {
  std::filesystem::create_directory(folder_ / "model");
  write("model/tokenizer.json", plain_tokenizer("qwen2"));
  const std::string jinja =
      "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
  write("model/tokenizer_config.json",
        nlohmann::json{{"chat_template", jinja}, {"bos_token", "<|im_start|>"}}.dump());
  write("a.jsonl", R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}]})"
                   "\n");
  const Result shown = run({"a.jsonl", "--tokenizer", "model", "--show", "1"});
  EXPECT_NE(shown.out.find("<|im_start|><|im_start|>user:Hi<|im_end|><|im_start|>assistant:[Yo<|im_end|>]"),
            std::string::npos)
      << shown.out << shown.error;
  const Result result = run({"a.jsonl", "--tokenizer", "model", "--output", "d"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("<|im_end|> (701)"), std::string::npos) << result.out;
  EXPECT_EQ(read_file(folder_ / "d/chat_template.jinja"), jinja);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "d/special_tokens_map.json"))["bos_token"],
            "<|im_start|>");
  EXPECT_EQ(read_manifest(folder_ / "d")->turn_ends, std::vector<int32_t>{701});
  // A template that cannot be read matters to conversations alone.
  write("model/tokenizer_config.json", R"({"chat_template":"{% include 'x' %}"})");
  write("b.jsonl", R"({"text":"a"})");
  EXPECT_EQ(run({"b.jsonl", "--tokenizer", "model", "--output", "e"}).status, 0);
  const Result refused = run({"a.jsonl", "--tokenizer", "model", "--output", "f"});
  EXPECT_EQ(refused.status, 1);
  for (const char* part : {"a.jsonl:1", "include", "--chat-template chatml"})
    EXPECT_NE(refused.error.find(part), std::string::npos) << refused.error;
}

}  // namespace
}  // namespace tessera
