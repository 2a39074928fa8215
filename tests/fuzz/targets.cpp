// What is fuzzed: everything that reads bytes which another program, another machine or a person wrote.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/chat/chat_request.h"
#include "data/chat/jinja.h"
#include "data/dataset_check.h"
#include "data/document_index.h"
#include "data/documents.h"
#include "data/manifest.h"
#include "data/sample_encoder.h"
#include "data/token_stream.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/json_text.h"
#include "kernels/gemm/table.h"
#include "model/formats/folder.h"
#include "model/formats/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "train/bench/sequence_lengths.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"
#include "train/launch/connection.h"
#include "train/launch/messages.h"
#include "train/launch/world.h"
#include "train/report/report_page.h"
#include "train/report/run_record.h"
#include "train/run/checkpoint_files.h"
#include "train/run/rank_options.h"
#include "train/run/run_state.h"
#include "train/session/memory_limit.h"

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;

fs::path write(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::path source(const char* path) { return fs::path(TESSERA_SOURCE_DIR) / path; }

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line) && lines.size() < 40;) lines.push_back(line);
  return lines;
}

template <class Integer>
std::string bytes_of(Integer value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string of_hex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

template <class Token>
std::string shard(const std::vector<Token>& tokens) {
  const bool wide = sizeof(Token) == 4;
  std::string bytes = bytes_of(uint32_t{wide ? 20240801u : 20240520u}) + bytes_of(uint32_t{wide ? 7u : 1u}) +
                      bytes_of(static_cast<uint32_t>(tokens.size()));
  bytes.resize(1024, '\0');
  for (const Token token : tokens) bytes += bytes_of(token);
  return bytes;
}
using Tokens = std::vector<uint16_t>;
using WideTokens = std::vector<uint32_t>;

// A fault that no sanitizer sees.
void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

Target json() {
  return {.name = "json",
          .read =
              [](std::string_view bytes, const fs::path&) {
                const nlohmann::json value = parse_json(bytes, "input");
                brief(value);
                const auto again = parse_json(value.dump(), "again");
                require(again == value || value.dump() == again.dump(), "JSON changes when written and read");
                whole_number(value, "tokens", "input");
                text_value(value, "tokenizer", "input");
              },
          .seeds = {R"({"tokens":12,"tokenizer":"bytes","a":[1,-2.5e3,true,null,"\u00e9\n"],"b":{"c":{}}})",
                    R"([[[1]],"x",18446744073709551615,-9223372036854775808,1e308])"},
          .words = {"\"tokens\":", "\\ud800", "\\u0000", "null", "true", "\xc3\xa9", "\xf0\x9f\x98\x80"}};
}

void read_yaml(std::string_view bytes, const fs::path& folder) {
  const Config config = load_config(write(folder / "config.yaml", bytes), {});
  const Config again = load_config(write(folder / "again.yaml", print_config(config)), {});
  require(config == again, "a configuration changes when printed and read");
  config_lines(config);
}

Target yaml() {
  return {
      .name = "yaml",
      .read = read_yaml,
      .seeds = {content_of(source("configs/quickstart.yaml")), content_of(source("configs/gpt2_small.yaml")),
                "model:\n  preset: llama3.2_1b\n  rope:\n    factor: 8\n  context: 1024\n",
                "train: {steps: 5, seed: 0x10, folder: \"a\\nb\"}\noptimizer:\n  learning_rate: 1e-3\n"},
      .words = {
          "model:", "train:", "\n  steps: ", "vocab_size: ", "preset: ", "rope: ",      "&a",       "*a",
          "<<: ",   "!!str ", "|\n",         ">-\n",         "? ",       "- ",          "~",        "auto",
          "all",    "true",   ".nan",        ".inf",         "---\n",    "%YAML 1.2\n", "\"\\x41\""}};
}

Target settings() {
  return {.name = "settings",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                const fs::path file = write(folder / "config.yaml", "train:\n  steps: 3\n");
                const Config config = load_config(file, lines_of(bytes));
                require(config == load_config(write(folder / "again.yaml", print_config(config)), {}),
                        "a configuration changes when printed and read");
              },
          .seeds = {"train.steps=5\nmodel.attention=naive", "optimizer.learning_rate=1e-3\ntrain.folder=a b",
                    "sampling.prompt=\"x\\n\"\ntrain.classifier_chunk=all"},
          .words = {"train.", "model.", "optimizer.", "=", "steps", "auto", "all", "sampling.prompt=", "1e-3",
                    "\n"}};
}

Target safetensors() {
  return {
      .name = "safetensors",
      .read =
          [](std::string_view bytes, const fs::path& folder) {
            const SafetensorsReader file(write(folder / "model.safetensors", bytes));
            for (const auto& [name, entry] : file.entries()) {
              if (entry.shape.size() != 1) continue;
              const Shape shape{entry.shape[0]};
              file.check_readable(name, shape);
              std::vector<float> values(static_cast<size_t>(entry.shape[0]));
              file.read(name, shape, values);
            }
          },
      .seeds = {content_of(source("tests/fixtures/gpt2_variants/all/model.safetensors")),
                bytes_of(uint64_t{68}) +
                    R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"b":{"dt")",
                bytes_of(uint64_t{59}) + R"({"abc":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}   )" +
                    std::string(8, '\1')},
      .words = {"\"F32\"", "\"BF16\"", "\"F16\"", "\"I64\"", "\"shape\":[", "\"data_offsets\":[",
                "__metadata__", "9223372036854775807", "4611686018427387904,4",
                "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"}};
}

Target model_config() {
  return {
      .name = "model_config",
      .read =
          [](std::string_view bytes, const fs::path& folder) {
            write(folder / "config.json", bytes);
            const FoundModel found = read_model_config(folder);
            require(found.model.parameters() > 0, "a model without parameters");
            check_same_model(folder, found.model);
            // A Mistral without a window is a Llama.
            const std::string family = family_of(found.model);
            require(family == found.family || (family == "llama" && found.family == "mistral"),
                    "a model changes its family");
            write(folder / "config.json", hugging_face_config(found.model, DType::kF32).dump());
            require(check_same_model(folder, found.model).family == family,
                    "a written model changes its family");
          },
      .seeds =
          {content_of(source("tests/fixtures/gpt2_reference/config.json")),
           content_of(source("tests/fixtures/gpt2_variants/all/config.json")),
           R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,)"
           R"("num_key_value_heads":2,"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,)"
           R"("low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}})",
           R"({"model_type":"qwen3","hidden_size":64,"num_hidden_layers":2,"head_dim":null,"layer_types":)"
           R"(["full_attention","full_attention"],"rope_parameters":{"rope_theta":1e6,"rope_type":"yarn",)"
           R"("factor":4.0,"mscale":1.0,"mscale_all_dim":0.5,"beta_fast":16}})"},
      .words = {"\"n_embd\":",
                "\"n_layer\":",
                "\"n_inner\":null",
                "\"activation_function\":",
                "\"gelu_new\"",
                "\"model_type\":\"gpt2\"",
                "\"model_type\":\"qwen2\"",
                "\"sliding_window\":4",
                "\"max_window_layers\":1",
                "\"use_sliding_window\":true",
                "\"sliding_attention\"",
                "\"model_type\":\"mistral\"",
                "\"tie_word_embeddings\":false",
                "\"head_dim\":",
                "\"num_attention_heads\":",
                "\"rope_scaling\":{",
                "\"type\":\"linear\"",
                "\"factor\":",
                "\"attention_factor\":",
                "\"truncate\":false",
                "\"factor\":null",
                "\"num_hidden_layers\":1000000",
                "\"sliding_window_pattern\":999999999",
                "\"neftune_noise_alpha\":5"}};
}

void read_stream(const fs::path& path) {
  TokenStream stream = TokenStream::open(path);
  stream.require_tokens_below(257);
  std::vector<int32_t> out(static_cast<size_t>(std::min<int64_t>(stream.size(), 4096)));
  stream.read(stream.size() - std::ssize(out), out);
  stream.describe();
}

Target shards() {
  return {.name = "shards",
          .read = [](std::string_view bytes,
                     const fs::path& folder) { read_stream(write(folder / "a.bin", bytes)); },
          .seeds = {shard(Tokens{1, 2, 3, 256}), shard(Tokens(2000, 7)), shard(WideTokens{1, 2, 256}),
                    shard(WideTokens(1000, 7)), shard(WideTokens{1, 0x80000000})},
          .words = {bytes_of(uint32_t{20240520}), bytes_of(uint32_t{20240801}), bytes_of(uint32_t{1}),
                    bytes_of(uint32_t{7})}};
}

Target dataset() {
  return {.name = "dataset",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                write(folder / "train_000000.bin", shard(Tokens{1, 2, 3, 256}));
                write(folder / kManifestName, bytes);
                verify_dataset(folder);
                read_manifest(folder);
                read_stream(folder);
              },
          .seeds = {R"({"format":"tessera-dataset-1","tokenizer":"bytes","vocab_size":257,"tokens":4,)"
                    R"("documents":1,"shards":1})",
                    R"({"format":"tessera-dataset-2","tokenizer":"bytes","vocab_size":257,"tokens":4,)"
                    R"("documents":1,"shards":1,"files":{"train_000000.bin":{"bytes":1032,)"
                    R"("xxh3_128":"00000000000000000000000000000000"}}})"},
          .words = {"\"files\":", "\"../x\"", "\"bytes\":", "\"xxh3_128\":", "\"tessera-dataset-2\"",
                    "\"tessera-dataset-3\"", "\"counted_tokens\":", "\"chat_template\":"}};
}

// The first byte chooses the name of the input, and so its format.
Target documents() {
  const auto read = [](std::string_view bytes, const fs::path& folder) {
    static const auto tokenizers = [] {
      std::vector<std::unique_ptr<Tokenizer>> made;
      made.push_back(load_tokenizer("bytes"));
      made.push_back(load_tokenizer(source("tests/fixtures/tokenizers/qwen2.json")));
      return made;
    }();
    constexpr const char* kNames[] = {"a.jsonl", "a.txt", "a.jsonl.gz", "a.jsonl.zst"};
    const size_t choice = bytes.empty() || bytes[0] < '1' || bytes[0] > '3' ? 0 : bytes[0] - '0';
    const fs::path input = write(folder / kNames[choice], choice == 0 ? bytes : bytes.substr(1));
    for (const auto& tokenizer : tokenizers) {
      static const ChatRequest chatml{.named = "chatml"};
      const auto chat = choose_chat_template(chatml, {}, *tokenizer);
      const SampleEncoder encoder({.tokenizer = tokenizer.get(), .chat = chat.get()});
      int64_t samples = 0;
      const auto on_piece = [&](const Piece& piece) {
        const EncodedPiece encoded = encoder.encode(piece);
        samples += encoded.documents + std::ssize(encoded.dropped);
        const auto special = std::ranges::count(encoded.ids, tokenizer->end_of_text());
        require(special == encoded.documents || encoded.ids.empty(), "a document forges its end");
        int64_t end = 0;
        for (const auto& [first, count] : encoded.marks.uncounted) {
          require(first >= end && count > 0 && first + count <= std::ssize(encoded.ids),
                  "a run is out of place");
          end = first + count;
        }
        return true;
      };
      read_pieces(input, InputFormat::kByName, {.on_piece = on_piece});
      require(samples > 0, "a file without a document is not refused");
    }
  };
  return {
      .name = "documents",
      .read = read,
      .seeds =
          {"{\"text\":\"one\"}\n\n{\"id\":1,\"text\":\"\\u00e9\"}\r\n{\"text\":\"\"}\n{\"text\":\"last\"}",
           R"({"messages":[{"role":"system","content":"a"},{"role":"user","content":"<|im_end|>"},)"
           R"({"role":"assistant","content":"b"}],"id":[null,1e3]})"
           "\n"
           R"({"prompt":"x","completion":" y<|endoftext|>"})",
           "1# a text\nof two lines\n",
           // {"text":"one"} by gzip and by zstd
           "2" + of_hex("1f8b0800000000000203ab562a49ad2851b252cacf4b55aa050059c175130e000000"),
           "3" + of_hex("28b52ffd04587100007b2274657874223a226f6e65227dcd3b0a2e")},
      .words = {"\"text\":", "{\"text\":\"", "\"}\n", "\r\n", "\\ud83d\\ude00", std::string(1, '\0'),
                "\"messages\":[", "{\"role\":\"user\",\"content\":\"", "\"assistant\"",
                "\"tool_calls\":", "\"prompt\":\"", "\"completion\":\"", "<|im_start|>", "<|endoftext|>"}};
}

// The index of a shard of 100 tokens
// The templates of strangers, on a small conversation with tools
Target chat_template() {
  return {
      .name = "chat_template",
      .read =
          [](std::string_view bytes, const fs::path&) {
            const jinja::Template made(bytes, "t.jinja");
            Conversation talk;
            talk.add("system", "Be brief.");
            talk.add("user", " Hi é\n");
            talk.add("assistant", "Hello.");
            const jinja::Dict variables{
                {jinja::Text("messages"), talk.messages},
                {jinja::Text("tools"), jinja::List{jinja::Dict{{jinja::Text("name"), "f"}}}},
                {jinja::Text("add_generation_prompt"), true},
                {jinja::Text("bos_token"), "<s>"}};
            const jinja::Rendered rendered = made.render(variables, std::tm{});
            size_t end = 0;
            for (const auto& run : rendered.text.runs()) {
              require(run.end > end, "an empty run of a text");
              end = run.end;
            }
            require(end == rendered.text.size(), "bytes without an origin");
            for (const jinja::Span& span : rendered.generated)
              require(span.first <= span.last && span.last <= end, "a span is out of place");
          },
      .seeds =
          {chat_form("chatml").jinja, chat_form("llama3").jinja,
           "{%- set ns = namespace(n=0) -%}{%- for m in messages[::-1] if m.role != 'system' -%}{%- set "
           "ns.n = ns.n + loop.index0 -%}{{ m['content'].split('e')[-1] | trim ~ ns.n }}{%- endfor -%}",
           "{% macro f(a, b='x') %}{{ a.b | default(b) | upper }}{% endmacro %}{{ f({'b': [1, "
           "2.5]|join(', ')}) }}"
           "{% for k, v in tools[0].items() %}{{ k ~ (v | tojson(indent=2)) }}{% else %}{{ "
           "raise_exception('no') }}"
           "{% endfor %}",
           "{% for m in messages %}{% generation %}{{ m.content[1:-1] }}{% endgeneration %}{% endfor %}",
           // attacks: deep and doubled values, long chains, much work, much memory
           "{% set ns = namespace(l=[1]) %}{% for i in range(40000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
           "ns.l }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = {'a': ns.l, 'b': (ns.l,)} %}"
           "{% endfor %}{{ ns.l | tojson }}{{ ns.l == ns.l }}",
           "{% set ns = namespace(s='x', l=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
           "{% set ns.l = ns.l + ns.l %}{% endfor %}",
           "{{ 1" + repeated("+1", 600) + " }}", "{{ x" + repeated(".y", 600) + " }}",
           "{{ 'x'" + repeated("|upper", 600) + " }}",
           "{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{% if s.find('y') > s | length %}{% endif "
           "%}{% endfor %}",
           "{% set x = ('x' * 100000) | replace('x', 'y' * 100000) | indent(9000) | join('z' * 100000) %}",
           "{% set x = range(99999) | map('center', 100000) | batch(99999, 1) | list | tojson(indent=9999) "
           "%}",
           "{{ '%099999999d' % 1 }}{{ '{:é^99999999}'.format('x') }}{{ 9 ** 99999 }}{{ 'x'.zfill(999999999) "
           "}}",
           "{% macro m(a, b=1) %}{{ m(a) }}{{ caller() }}{{ varargs }}{{ kwargs }}{% endmacro %}{% call(x) "
           "m(1) %}{% endcall %}",
           "{% for a in [1] recursive %}{{ loop([1]) }}{{ loop.cycle(1, 2) }}{{ loop.changed(loop) }}{% "
           "endfor %}",
           "{% for k, v in messages | groupby('role') %}{{ v | sort(attribute='content') | map('string') | "
           "unique | list }}{% endfor %}"},
      .words = {"{{",
                "}}",
                "{%",
                "%}",
                "{%-",
                "-%}",
                "{#",
                "#}",
                " in ",
                " is defined",
                " if ",
                " else ",
                "|",
                "[::",
                "**",
                "//",
                "range(",
                "namespace(",
                "strftime_now('%Y')",
                "{% set x %}",
                "{% endset %}",
                "{% break %}",
                "loop.nextitem",
                "9223372036854775807",
                "messages|map(attribute='content')|list"}};
}

Target document_index() {
  const auto index = [](int64_t first, const std::vector<uint32_t>& starts,
                        const std::vector<uint32_t>& runs) {
    std::string bytes = "tessdocs" + bytes_of(uint64_t{1});
    for (const int64_t number : {first, int64_t{100}, std::ssize(starts), std::ssize(runs) / 2})
      bytes += bytes_of(number);
    for (const uint32_t number : starts) bytes += bytes_of(number);
    for (const uint32_t number : runs) bytes += bytes_of(number);
    return bytes;
  };
  return {.name = "document_index",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                write(folder / "a.documents", bytes);
                DocumentIndex documents;
                documents.add_shard(folder / "a.bin", 100);
                int64_t end = 0;
                for (int64_t i = 0; i < documents.count(); ++i) {
                  const TokenRange document = documents.document(i);
                  require(document.first_token == end && document.token_count > 0, "documents leave a gap");
                  end += document.token_count;
                }
                require(end == 100, "documents do not fill the stream");
                std::vector<int32_t> targets(100, 0);
                documents.drop_uncounted(0, targets);
                require(std::ranges::count(targets, 0) == documents.counted_tokens(), "a count is wrong");
              },
          .seeds = {index(0, {0, 5, 99}, {1, 4, 50, 50}), index(500, {}, {}), index(100, {7}, {0, 100})},
          .words = {"tessdocs", bytes_of(uint32_t{1}), bytes_of(uint32_t{99}), bytes_of(uint32_t{100}),
                    bytes_of(uint64_t{1}), bytes_of(~uint32_t{0})}};
}

// A tokenizer that was read gives ids that it decodes, and writes a file that it reads as itself.
void use_tokenizer(const std::string& source, const fs::path& folder) {
  const auto tokenizer = load_tokenizer(source);
  try {
    for (const SpecialTokens special : {SpecialTokens::kAsText, SpecialTokens::kMatched})
      tokenizer->decode(tokenizer->encode("It's  a\n\n\u00e9 e\u0301 123 ab abcd<|endoftext|> \xff", special),
                        true);
  } catch (const Error&) {  // a byte without a token, an expression that takes too long
  }
  const fs::path again = write(folder / "again.json", tokenizer->json());
  require(load_tokenizer(again.string())->name() == tokenizer->name(),
          "a tokenizer changes when written and read");
}

Target tokenizer() {
  return {
      .name = "tokenizer",
      .read = [](std::string_view bytes,
                 const fs::path& folder) { use_tokenizer(write(folder / "tokenizer.json", bytes), folder); },
      .seeds =
          {content_of(source("tests/fixtures/tokenizers/llama3.json")),
           R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},"normalizer":{"type":"NFC"},)"
           R"("added_tokens":[{"id":9,"content":"<|endoftext|>","special":true,"lstrip":true}],)"
           R"("model":{"vocab":{"a":0,"b":1,"ab":2,"c":3,"d":4,"cd":5,"abcd":6,"\u0120":7},)"
           R"("merges":["a b",["c","d"],"ab cd"]}})",
           content_of(source("tests/fixtures/tokenizers/llama2.json")),
           R"({"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false},)"
           R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},)"
           R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
           R"("model":{"unk_token":"?","fuse_unk":true,"byte_fallback":true,"merges":["_ a","a b"],)"
           R"("vocab":{"?":0,"_":1,"a":2,"b":3,"_a":4,"ab":5,"<0xC3>":6,"<0xA9>":7}}})",
           R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Split",)"
           R"x("pattern":{"Regex":"[a-c]+|\\s+(?!\\S)"},"behavior":"MergedWithNext","invert":true},)x"
           R"({"type":"ByteLevel","add_prefix_space":false}]},"model":{"vocab":{"a":0},"merges":[]}})"},
      .words = {
          "\"merges\":[", "\"vocab\":{", "\"type\":\"Split\"", "\"Regex\":\"", "\\\\p{L}", "(?=", "(a+)+",
          "\"behavior\":\"Contiguous\"", "\"ignore_merges\":true", "\"Sequence\"", "\"single_word\":true",
          "\"rstrip\":true", "\"normalized\":true", "\"TemplateProcessing\"", "\"prepend_scheme\":\"always\"",
          "\"type\":\"Prepend\"", "\"type\":\"Replace\"", "\"split\":true",
          R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},)"}};
}

Target merges() {
  return {.name = "merges",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                write(folder / "vocab.json", R"({"a":0,"b":1,"ab":2,"ba":3,"aba":4,"\u0120":5,"\u0120a":6})");
                write(folder / "merges.txt", bytes);
                use_tokenizer(folder, folder);
              },
          .seeds = {"#version: 0.2\na b\nb a\nab a\n\u0120 a\n", "a ba", "a b\r\n"},
          .words = {"a b\n", "ab a\n", "\n", " ", "\u0120", "#version", std::string(1, '\0')}};
}

// Texts for a tokenizer that is whole: any bytes come back.
Target encoding() {
  return {.name = "encoding",
          .read =
              [](std::string_view bytes, const fs::path&) {
                static const auto tokenizers = [] {
                  std::vector<std::unique_ptr<Tokenizer>> made;
                  for (const char* kind : {"gpt2", "llama3", "smollm2", "qwen2"})
                    made.push_back(
                        load_tokenizer(source("tests/fixtures/tokenizers") / (std::string(kind) + ".json")));
                  return made;
                }();
                // That token takes the blanks before it.
                const bool whole = bytes.find("<think>") == bytes.npos;
                for (const auto& tokenizer : tokenizers) {
                  const std::string once = tokenizer->decode(tokenizer->encode(bytes), true);
                  require(!whole || once == bytes || tokenizer == tokenizers.back(), "a text changes");
                  const std::string twice = tokenizer->decode(tokenizer->encode(once), true);
                  require(!whole || twice == once, "a composed text changes");
                }
                // Characters with byte fallback, which write a blank as U+2581
                static const auto with_fallback = [] {
                  std::vector<std::unique_ptr<Tokenizer>> made;
                  for (const char* kind : {"llama2", "gemma", "mistral"})
                    made.push_back(
                        load_tokenizer(source("tests/fixtures/tokenizers") / (std::string(kind) + ".json")));
                  return made;
                }();
                if (bytes.find("think") != bytes.npos || bytes.find("\u2581") != bytes.npos) return;
                for (const auto& tokenizer : with_fallback) {
                  const bool drops = tokenizer == with_fallback.back() && bytes.starts_with(' ');
                  const auto ids = tokenizer->encode(bytes);
                  require(tokenizer->decode(ids, true) == bytes.substr(drops),
                          "a text of characters changes");
                  const size_t cut = tokenizer->last_cut(bytes);
                  if (cut == 0) continue;
                  auto parts = tokenizer->encode(bytes.substr(0, cut));
                  const auto rest =
                      tokenizer->encode(bytes.substr(cut), SpecialTokens::kAsText, TextPlace::kWithin);
                  parts.insert(parts.end(), rest.begin(), rest.end());
                  require(parts == ids, "a cut changes ids");
                }
              },
          .seeds = {"It's 12345 words,\r\n\n and  more\t<|im_end|>  <think> x",
                    "e\u0301\u0323 \uac00\u11a8 \U0001f468\u200d\U0001f469 \u0e01\u0e33 \xff\xc3"},
          .words = {"<|im_start|>", "<think>", "think", "'LL", "\u00a0", "\u3000", "\u0301", "\u1161",
                    "\xf0\x9f"}};
}

Target checkpoint_state() {
  return {
      .name = "state",
      .read =
          [](std::string_view bytes, const fs::path& folder) {
            write(folder / kStateFile, bytes);
            read_step(folder);
            json_of(read_run_state(folder));
          },
      .seeds = {R"({"format":"tessera checkpoint 1","step":5,"data_position":20,"seed":1,"micro_batch":4,)"
                R"("sequence_length":32,"device":"cpu","data":"a"})",
                R"({"format":"tessera checkpoint 2","step":5,"data_position":20,"seed":1,"micro_batch":4,)"
                R"("sequence_length":32,"ranks":2,"device":"cuda","data":"a","data_fingerprint":{"train":)"
                R"({"tokens":100,"tokenizer":"bytes","sources":[{"file":"a","bytes":100,"start":"0"}],)"
                R"("sample":"1"},"train_range":[0,90]},"shift":true,"evaluations_since_best":1,)"
                R"("best":{"step":4,"validation_loss":2.5}})"},
      .words = {"\"train_range\":[",
                "\"best\":", "\"validation_loss\":", "\"data_fingerprint\":", "\"ranks\":"}};
}

Target checksums() {
  const std::string digits(32, 'a');
  FileChecksums files;
  for (const char* file : {"model.safetensors", "optimizer.safetensors", kModelFile, kStateFile})
    files[file] = {5, digits};
  return {.name = "checksums",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                write(folder / kChecksumsFile, bytes);
                verify_files(folder, written_checksums(folder));
              },
          .seeds = {checksums_text(files)},
          .words = {"\"files\":", "\"bytes\":", "\"xxh3_128\":", "\"../a\":", digits}};
}

// The frames of the process group. What comes in pieces must be the same as what comes at once.
Target connection() {
  const auto frame = [](uint32_t kind, const std::string& body) {
    return bytes_of(uint32_t{0x41535354}) + bytes_of(kind) + bytes_of(uint64_t{body.size()}) + body;
  };
  return {.name = "connection",
          .read =
              [](std::string_view bytes, const fs::path&) {
                size_t all = 0, by_pieces = 0;
                for (size_t* count : {&all, &by_pieces}) {
                  int ends[2];
                  require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
                  const Descriptor writer(ends[0]);
                  Connection reader{Descriptor(ends[1])};
                  reader.set_max_message_bytes(1 << 16);
                  const size_t piece = count == &all ? bytes.size() : 7;
                  // Never waits: this thread is the reader as well, and it stops reading at a wrong frame.
                  for (size_t at = 0; at < bytes.size() && !reader.ended();) {
                    const std::string_view part = bytes.substr(at, piece);
                    const ssize_t sent =
                        send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
                    if (sent < 0 && errno != EAGAIN) break;
                    at += static_cast<size_t>(std::max<ssize_t>(0, sent));
                    reader.receive();
                    while (const auto message = reader.next()) *count += 1 + message->body.size();
                  }
                }
                require(all == by_pieces, "messages depend on the pieces that they come in");
              },
          .seeds = {frame(0, R"({"rank":1,"size":2})") + frame(3, "abc") + frame(5, ""), frame(7, "{}")},
          .words = {"TSSA", bytes_of(uint64_t{5}), bytes_of(uint64_t{1} << 40)}};
}

// What the frames hold: JSON from another process.
Target rank_messages() {
  return {.name = "rank_messages",
          .read =
              [](std::string_view bytes, const fs::path&) {
                const auto refused = [](const auto& decode) {
                  try {
                    decode();
                    return false;
                  } catch (const Error&) {
                    return true;
                  }
                };
                const bool all_refused =
                    refused([&] { decode_hello(bytes); }) & refused([&] { decode_welcome(bytes); }) &
                    refused([&] { decode_heartbeat(bytes); }) & refused([&] { decode_shutdown(bytes); });
                check(!all_refused, "no message");
              },
          .seeds = {encode(Hello{.rank = 1, .size = 2, .name = "rank 1", .run = {"x", "a: 1"}}),
                    encode(Welcome{"rank 0"}), encode(Heartbeat{3, Timeout::kLimit, "step 1"}),
                    encode(Shutdown{0, "no memory"})},
          .words = {"\"rank\":", "\"phases\":", "\"reporter\":", "[[[[", "-1", "1e99"}};
}

Target environment() {
  return {
      .name = "environment",
      .read =
          [](std::string_view bytes, const fs::path&) {
            const std::vector<std::string> lines = lines_of(bytes);
            world_of_environment([&](const std::string& variable) -> std::optional<std::string> {
              for (const std::string& line : lines)
                if (line.starts_with(variable + "=")) return line.substr(variable.size() + 1);
              return std::nullopt;
            });
          },
      .seeds = {"RANK=1\nWORLD_SIZE=2\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=29500",
                "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\n"
                "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                "SLURM_STEP_NUM_TASKS=4\nSLURM_PROCID=3\nSLURM_LOCALID=1\nSLURM_NODEID=1\n"
                "SLURM_STEP_TASKS_PER_NODE=2(x2)\nSLURM_STEP_NODELIST=node[1-2]\nSLURM_JOB_ID=77"},
      .words = {"SLURM_STEP_TASKS_PER_NODE=", "2(x2),1", "node[01-03,7]", "TESSERA_LISTEN_FD=", "\n",
                "RANK="}};
}

void read_command_line(std::string_view bytes, const fs::path&) {
  std::vector<std::string> words = lines_of(bytes);
  words.insert(words.begin(), "train");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Options app{"Fuzzed.", "train"};
  std::string config, verified;
  std::vector<std::string> overrides;
  AskedRanks asked;
  app.add("config,--config", config, "A file").type_name("FILE");
  app.add("--set", overrides, "A key").type_name("KEY=VALUE").one_at_a_time();
  app.add("--verify", verified, "A folder").type_name("FOLDER");
  add_rank_options(app, asked);
  parse_command_line({app, static_cast<int>(argv.size()), argv.data(), option_is_a_key});
}

Target command_line() {
  return {.name = "command_line",
          .read = read_command_line,
          .seeds = {"--config\nquickstart.yaml\n--set\ntrain.steps=5\n--ranks\n2", "--help", "--version",
                    "--gpus=3\n--steps=5\nx\ny", "--verify\na"},
          .words = {"--config", "--set", "--ranks", "--gpus", "--help", "\n", "=", "--"}};
}

Target sizes() {
  return {.name = "sizes",
          .read =
              [](std::string_view bytes, const fs::path&) {
                const std::string text(bytes.substr(0, 200));
                try {
                  require(parse_sequence_lengths(text).size() < 1'000'000, "a list without an end");
                } catch (const Error&) {
                }
                require(parse_bytes(text) >= 0, "a size below nothing");
              },
          .seeds = {"80GiB", "1024,2048", "512..65536", "79.6 GiB", "85899345920"},
          .words = {"..", "GiB", "TiB", "KB", ",", "1e9"}};
}

Target metrics() {
  return {.name = "metrics",
          .read =
              [](std::string_view bytes, const fs::path& folder) {
                write(folder / "metrics.jsonl", bytes);
                const RunRecord record = read_run(folder);
                record.tokens_per_second();
              },
          .seeds = {R"({"type":"start","step":0,"time":"2024-01-01T00:00:00Z","parameters":5})"
                    "\n"
                    R"({"type":"step","step":1,"loss":2.5,"grad_norm":1.0,"tokens":256,"elapsed":0.5})"
                    "\n"
                    R"({"type":"evaluation","step":1,"validation_loss":2.4})"
                    "\n"
                    R"({"type":"sample","step":1,"prompt":"a","sample":"b"})"
                    "\n"
                    R"({"type":"stop","step":1,"reason":"finished"})"
                    "\n",
                    "{\"step\":1,\"loss\":3,\"ms\":5}\n{\"step\":2,\"loss\":null}\n"},
          .words = {"\"type\":\"step\"", "\"loss\":", "\"memory\":{", "\"step\":", "\"elapsed\":", "\n",
                    "1e308"}};
}

Target gemm_tables() {
  return {
      .name = "gemm_tables",
      .read =
          [](std::string_view bytes, const fs::path&) {
            const GemmTable table = parse_gemm_table(bytes, "a table");
            const std::string text = text_of(table);
            require(text_of(parse_gemm_table(text, "its text")) == text, "a table that changes");
          },
      .seeds = {content_of(source("configs/gemms/nvidia_h100_80gb_hbm3-130100-13000.jsonl")).substr(0, 1500)},
      .words = {"\"ld\":", "\"alignment\":", "\"batch\":", "\"batch_stride\":", "\"transposed\":true",
                "\"epilogue\":\"dgelu\"", "\"adds\":", "\n", "1e308"}};
}

}  // namespace

std::vector<Target> targets() {
  return {
      json(),        yaml(),         settings(),       safetensors(),  model_config(),     shards(),
      dataset(),     documents(),    document_index(), checksums(),    connection(),       rank_messages(),
      environment(), command_line(), sizes(),          metrics(),      checkpoint_state(), tokenizer(),
      merges(),      encoding(),     gemm_tables(),    chat_template()};
}

}  // namespace tessera::fuzz
