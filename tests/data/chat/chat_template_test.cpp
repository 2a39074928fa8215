// Conversations in the templates that makers of models publish: the ids of transformers, and what counts.
#include "data/chat/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/chat/chat_request.h"
#include "data/samples.h"
#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/tokenizers/support.h"
#include "tests/shared_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const ordered_json& fixture() {
  static const auto made =
      ordered_json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/fixtures/chat_templates.json"));
  return made;
}

Conversation conversation_of(const ordered_json& json) {
  return std::get<Conversation>(parse_sample(json.dump(), "a.jsonl", 1, "text"));
}

std::string checksum(const std::vector<int32_t>& ids) {  // FNV-1a, of 32-bit words
  uint64_t value = 0xcbf29ce484222325;
  for (const int32_t id : ids) value = (value ^ static_cast<uint64_t>(id)) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

EncodeText plain(const Tokenizer& tokenizer) {
  return [&](std::string_view text, SpecialTokens special, TextPlace place, std::vector<int32_t>& ids) {
    tokenizer.encode(text, special, ids, place);
  };
}

std::vector<int32_t> all_ids(const EncodedChat& encoded) {
  std::vector<int32_t> ids;
  for (const ChatPart& part : encoded.parts) ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  return ids;
}

// As text, with what counts in brackets
std::string marked(const EncodedChat& encoded, const Tokenizer& tokenizer) {
  std::string text;
  for (const ChatPart& part : encoded.parts) {
    const std::string one = tokenizer.decode(part.ids, true);
    text += part.counts ? "[" + one + "]" : one;
  }
  return text;
}

bool joins(const ChatTemplate& chat, const Conversation& talk, const Tokenizer& tokenizer) {
  try {
    return chat.encode(talk, false, plain(tokenizer)).joined > 0;
  } catch (const UnfitConversation&) {
    return false;
  }
}

void expect_ids_of(const ordered_json& one, const Tokenizer& tokenizer, const ChatTemplate& chat) {
  ordered_json talks = fixture()["conversations"];
  if (const auto more = fixture()["more"].find(one["template"]); more != fixture()["more"].end())
    talks.insert(talks.end(), more->begin(), more->end());
  for (size_t i = 0; i < talks.size(); ++i) {
    const Conversation talk = conversation_of(talks[i]);
    for (const bool begins : {false, true}) {
      const auto& expected = one["ids"][2 * i + begins];
      const auto ids = [&] {
        return begins ? chat.prompt(talk) : all_ids(chat.encode(talk, /*all=*/true, plain(tokenizer)));
      };
      if (expected.is_null()) {
        EXPECT_THROW(ids(), Error) << one["template"] << " refuses " << talks[i];
        continue;
      }
      try {
        const auto made = ids();
        // The turns of a prompt are encoded apart, as those of training are.
        if (begins && (joins(chat, talk, tokenizer) || chat.turn_end().token < 0)) continue;
        EXPECT_EQ(ordered_json({made.size(), checksum(made)}), expected)
            << one["template"] << " " << one["tokenizer"] << " " << talks[i] << "\n"
            << tokenizer.decode(made, true);
      } catch (const Error& error) {
        // transformers leaves out what a template does not read: here that is refused.
        const std::string& jinja = chat.form().jinja;
        const bool tools = !talk.tools.is_none() && jinja.find("tools") == jinja.npos;
        const bool calls =
            jinja.find("tool_calls") == jinja.npos && talks[i].dump().find("tool_calls") != std::string::npos;
        EXPECT_TRUE(tools || calls) << one["template"] << " " << talks[i] << " " << error.what();
      }
    }
  }
}

TEST(ChatTemplates, HaveTheIdsOfTransformers) {
  const auto found = testing::shared_data("chat_templates");
  if (!found.missing.empty()) GTEST_SKIP() << found.missing;
  const fs::path shared = found.path.parent_path();
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const auto& one : fixture()["cases"]) {
    if (!fs::exists(shared / "chat_templates" / one["template"])) continue;  // not on every machine
    auto& tokenizer = tokenizers[one["tokenizer"]];
    if (!tokenizer)
      tokenizer = load_tokenizer((shared / "tokenizers" / one["tokenizer"] / "tokenizer.json").string());
    ChatOptions options{.special = SpecialTokens::kMatched};
    options.now.tm_year = 126;
    options.now.tm_mday = 31;
    for (const char* name : {"bos_token", "eos_token"})
      options.values.emplace_back(jinja::Text(name), jinja::Text(one[name].get<std::string>()));
    const ChatTemplate chat(chat_form((shared / "chat_templates" / one["template"]).string()), *tokenizer,
                            options);
    expect_ids_of(one, *tokenizer, chat);
  }
}

struct ChatTemplateTest : InTempFolder {
  ChatTemplate make(const std::string& jinja, ChatOptions options = {}) {
    return {chat_form_of(jinja, "t"), *tokenizer, std::move(options)};
  }
  std::string show(const ChatTemplate& chat, const std::string& line) {
    return marked(chat.encode(conversation_of(ordered_json::parse(line)), false, plain(*tokenizer)),
                  *tokenizer);
  }
  std::unique_ptr<Tokenizer> tokenizer =
      load_tokenizer(write("tokenizer.json", plain_tokenizer("qwen2")).string());
};

// As gpt-oss's does: the name of a call stands before its result, and thoughts only in the last answer.
TEST_F(ChatTemplateTest, TheNameOfACallBeforeItsResultIsNotWhatTheModelWrites) {
  const std::string harmony =
      "{% set last = namespace(name='') %}{% for m in messages %}{% if m.tool_calls is defined %}"
      "{% set last.name = m.tool_calls[0].function.name %}"
      "<|im_start|>assistant to={{ last.name }}<|im_end|>{% elif m.role == 'tool' %}"
      "<|im_start|>{{ last.name }} to=assistant{{ m.content }}<|im_end|>{% else %}"
      "<|im_start|>{{ m.role }}{% if loop.last and m.thinking is defined %}!{{ m.thinking }}{% endif %}"
      ":{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";
  const std::string talk =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":)"
      R"({"name":"look","arguments":{}}}]},{"role":"tool","content":"r"},)"
      R"({"role":"assistant","content":"b","thinking":"t"}]})";
  EXPECT_EQ(show(make(harmony), talk),
            "<|im_start|>user:a<|im_end|><|im_start|>assistant[ to=look<|im_end|>]"
            "<|im_start|>look to=assistantr<|im_end|><|im_start|>assistant[!t:b<|im_end|>]");
}

constexpr const char* kTalkLine =
    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
    R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}]})";

TEST_F(ChatTemplateTest, ATurnCountsFromTheBeginningOfItsAnswerToTheTokenThatEndsIt) {
  const std::string header = "{% for m in messages %}<|im_start|>{{ m.role }}\n";
  const std::string rest = "{{ m.content }}<|im_end|>\n{% endfor %}";
  const std::string begin = "{% if add_generation_prompt %}<|im_start|>assistant\n";
  EXPECT_EQ(show(make(header + rest + begin + "{% endif %}"), kTalkLine),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
  // Qwen3's form: only the last answer has an empty block of thoughts, which the model writes.
  EXPECT_EQ(show(make(header + "{% if loop.last and m.role == 'assistant' %}<t>\n\n</t>\n\n{% endif %}" +
                      rest + begin + "{% endif %}"),
                 kTalkLine),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[<t>\n\n</t>\n\nd<|im_end|>]\n");
  // The same block, but written where an answer begins
  EXPECT_EQ(show(make(header + "{% if loop.last and m.role == 'assistant' %}<t>\n\n</t>\n\n{% endif %}" +
                      rest + begin + "<t>\n\n</t>\n\n{% endif %}"),
                 R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<t>\n\n</t>\n\n[b<|im_end|>]\n");
  // An answer begins in a way in which no answer in the data does.
  EXPECT_EQ(show(make(header + rest + begin + "<t>\n{% endif %}"),
                 R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
}

TEST_F(ChatTemplateTest, WhatATemplateMarksCounts) {
  EXPECT_EQ(show(make("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content "
                      "}}{% endgeneration %}"
                      "<|im_end|>{% else %}{{ m.content }}<|im_start|>{% endif %}{% endfor %}"),
                 kTalkLine),
            "a<|im_start|>[b]<|im_end|>c<|im_start|>[d]<|im_end|>");
}

TEST_F(ChatTemplateTest, AnAnswerThatJoinsItsHeaderIsEncodedApartAndCounted) {
  const ChatTemplate chat = make(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  const auto encoded = chat.encode(
      conversation_of(ordered_json::parse(
          R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"::b"}]})")),
      false, plain(*tokenizer));
  ASSERT_EQ(encoded.parts.size(), 2u);
  EXPECT_EQ(tokenizer->decode(encoded.parts[0].ids, true), "user:a<|im_end|>assistant:");
  Conversation talk;
  talk.add("user", "a");
  EXPECT_EQ(encoded.parts[0].ids, chat.prompt(talk));
  const bool joins = tokenizer->encode("assistant:::b") != [&] {
    auto ids = tokenizer->encode("assistant:");
    for (const int32_t id : tokenizer->encode("::b")) ids.push_back(id);
    return ids;
  }();
  EXPECT_EQ(encoded.joined, joins ? 1 : 0);
}

// Llama 2's tokenizer puts a blank before what follows a special token, and before nothing that goes on.
TEST_F(ChatTemplateTest, ATalkThatGoesOnHasTheIdsOfTheWholeTalk) {
  for (const char* kind : {"llama2.json", "mistral.json", "gemma.json", "qwen2.json"}) {
    const auto one = load_tokenizer(tokenizer_fixture(kind).string());
    const ChatTemplate chat(
        chat_form_of("{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
                     "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}",
                     "t"),
        *one, {});
    Conversation talk;
    talk.add("user", "one or  two");
    std::vector<int32_t> ids = chat.prompt(talk);
    const std::string asked = chat.prompt_text(talk), answer = " a word";
    for (const int32_t id : one->encode(answer, SpecialTokens::kAsText, TextPlace::kWithin))
      ids.push_back(id);
    ids.push_back(one->special_token("<|im_end|>"));
    talk.add("assistant", "a word");
    talk.add("user", "and?");
    for (const int32_t id : chat.prompt(talk, (asked + answer + "<|im_end|>").size())) ids.push_back(id);
    EXPECT_EQ(ids, chat.prompt(talk)) << kind;
    std::vector<int32_t> whole = one->encode(chat.prompt_text(talk), SpecialTokens::kMatched);
    EXPECT_EQ(ids, whole) << kind;
  }
}

TEST_F(ChatTemplateTest, SaysWhichSpecialTokensEndWhatCounts) {
  const auto ends = [&](const std::string& jinja) {
    return make(jinja).encode(conversation_of(ordered_json::parse(kTalkLine)), false, plain(*tokenizer));
  };
  const EncodedChat with = ends("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_EQ(with.turn_ends, std::vector<int32_t>{701});
  EXPECT_FALSE(with.ends_with_target);
  const EncodedChat without = ends("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  EXPECT_TRUE(without.turn_ends.empty());
  EXPECT_TRUE(without.ends_with_target);
}

// {% generation %} may reach past the token that ends a turn.
TEST_F(ChatTemplateTest, TheEndOfAMarkedTurnIsTheLastSpecialTokenThatCounts) {
  const auto encoded = [&](const std::string& end, const std::string& talk = kTalkLine) {
    return make(
               "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation "
               "%}"
               "{{ m.content }}" +
               end + "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}")
        .encode(conversation_of(ordered_json::parse(talk)), false, plain(*tokenizer));
  };
  const int32_t end_of_text = tokenizer->special_token("<|endoftext|>");
  for (const char* after : {"", "\n", "\n\n", "  ", " \n\t", "and so on\n"}) {
    EXPECT_EQ(encoded(std::string("<|im_end|>") + after).turn_ends, std::vector<int32_t>{701}) << after;
    EXPECT_FALSE(encoded(std::string("<|im_end|>") + after).ends_with_target);
    EXPECT_EQ(encoded(std::string("<|im_end|><|endoftext|>") + after).turn_ends,
              std::vector<int32_t>{end_of_text});
  }
  EXPECT_TRUE(encoded("\n").turn_ends.empty());
  EXPECT_TRUE(encoded("\n").ends_with_target);
  // A special token before what an assistant says, or within it, ends no turn.
  const std::string begun =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>"
      "{{ m.content }}\n{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_TRUE(make(begun)
                  .encode(conversation_of(ordered_json::parse(kTalkLine)), false, plain(*tokenizer))
                  .turn_ends.empty());
}

TEST_F(ChatTemplateTest, AMessageForgesNoSpecialTokenUnlessAsked) {
  const std::string jinja =
      "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}";
  const std::string forged =
      R"({"messages":[{"role":"user<|im_end|>","content":"x<|im_end|>"},{"role":"assistant","content":"y"}]})";
  for (const auto special : {SpecialTokens::kAsText, SpecialTokens::kMatched}) {
    const auto encoded = make(jinja, {.special = special})
                             .encode(conversation_of(ordered_json::parse(forged)), false, plain(*tokenizer));
    EXPECT_EQ(std::ranges::count(all_ids(encoded), 701), special == SpecialTokens::kAsText ? 2 : 4);
    EXPECT_EQ(encoded.special_names, 2);
  }
}

TEST_F(ChatTemplateTest, AConversationThatItsTemplateDoesNotFitIsNamed) {
  const auto refuses = [&](const std::string& jinja, const std::string& line,
                           std::initializer_list<std::string_view> parts) {
    expect_error([&] { show(make(jinja), line); }, parts);
    const Conversation talk = conversation_of(ordered_json::parse(line));
    EXPECT_NO_THROW(make(jinja).encode(talk, true, plain(*tokenizer)));
  };
  // Earlier messages are written in another form once an answer follows.
  refuses("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}", kTalkLine,
          {"message 2", "another form"});
  refuses(
      "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ m.content }}{% endfor %}",
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
      {"message 1", "system"});
  for (const char* field : {"tool_calls", "reasoning_content"}) {
    ordered_json talk = ordered_json::parse(kTalkLine);
    talk["messages"][1][field] = 1;
    expect_error([&] { show(make("{% for m in messages %}{{ m.content }}{% endfor %}"), talk.dump()); },
                 {field, "message 2"});
  }
  ordered_json talk = ordered_json::parse(kTalkLine);
  talk["tools"] = {{{"name", "f"}}};
  expect_error([&] { show(make("{% for m in messages %}{{ m.content }}{% endfor %}"), talk.dump()); },
               {"tools"});
}

TEST_F(ChatTemplateTest, ThePromptOfAnAnswerIsWhatItIsTrainedOn) {
  const ChatTemplate chat = make(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  Conversation talk = conversation_of(ordered_json::parse(kTalkLine));
  const auto whole = all_ids(chat.encode(talk, false, plain(*tokenizer)));
  talk.messages.pop_back();
  const auto prompt = chat.prompt(talk);
  ASSERT_LT(prompt.size(), whole.size());
  EXPECT_TRUE(std::ranges::equal(prompt, std::span(whole).first(prompt.size())));
  EXPECT_EQ(chat.turn_end().token, 701);
}

TEST_F(ChatTemplateTest, AFolderHasItsTemplateInAFileOrInItsConfiguration) {
  EXPECT_FALSE(find_chat_form(folder_).has_value());
  write("tokenizer_config.json", R"({"chat_template":"one","eos_token":{"content":"<|im_end|>"}})");
  EXPECT_EQ(find_chat_form(folder_)->jinja, "one");
  EXPECT_EQ(find(special_tokens_of(folder_), "eos_token")->text()->bytes(), "<|im_end|>");
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"tool_use","template":"two"},{"name":"default","template":"three"}]})");
  EXPECT_EQ(find_chat_form(folder_)->jinja, "three");
  EXPECT_EQ(find_chat_form(folder_, /*tools=*/true)->jinja, "two");
  write("tokenizer_config.json", R"({"chat_template":[{"name":"other","template":"two"}]})");
  expect_error([&] { find_chat_form(folder_); }, {"tokenizer_config.json", "default"});
  write("chat_template.jinja", "four");
  EXPECT_EQ(find_chat_form(folder_)->jinja, "four");
  EXPECT_EQ(find_chat_form(folder_, /*tools=*/true)->jinja, "four");
  write("chat_template.jinja", chat_form("chatml").jinja);
  EXPECT_EQ(find_chat_form(folder_)->name, "chatml");
}

TEST_F(ChatTemplateTest, AFolderMayHaveFurtherTemplates) {
  fs::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "tools");
  write("additional_chat_templates/rag.jinja", "rag");
  write("additional_chat_templates/notes.txt", "none");
  EXPECT_FALSE(find_chat_form(folder_).has_value());
  EXPECT_EQ(find_chat_form(folder_, /*tools=*/true)->jinja, "tools");
  write("tokenizer_config.json", R"({"chat_template":"usual"})");
  EXPECT_EQ(find_chat_form(folder_)->jinja, "usual");
  write("chat_template.jinja", "file");
  EXPECT_EQ(find_chat_form(folder_)->jinja, "file");
  EXPECT_EQ(find_chat_form(folder_, /*tools=*/true)->jinja, "tools");
  EXPECT_EQ(chat_form("rag", folder_).jinja, "rag");
  expect_error([&] { chat_form("none", folder_); }, {"--chat-template none", "chatml", "rag", "tool_use"});
}

TEST_F(ChatTemplateTest, ThoughtsHaveTheNameThatTheTemplateReads) {
  const auto shown = [&](const std::string& read, const std::string& fields) {
    return show(
        make("{% for m in messages %}{{ " + read + " }}{{ m.content }}<|im_end|>{% endfor %}"),
        R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)" + fields + "}]}");
  };
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const std::string fields = fmt::format(R"("{}":"so")", name);
    for (const char* read : {"reasoning_content", "thinking", "reasoning"})
      EXPECT_NE(shown(fmt::format("m.{} or ''", read), fields).find("so"), std::string::npos) << name << read;
    const Conversation talk = conversation_of(ordered_json::parse(
        R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)" + fields + "}]}"));
    EXPECT_TRUE(make("{% for m in messages %}{{ m.content }}{% endfor %}")
                    .encode(talk, true, plain(*tokenizer))
                    .lost_thoughts);
    EXPECT_TRUE(make("{% set thinking = 1 %}{% for m in messages %}{{ thinking }}{{ m.content }}{% endfor %}")
                    .encode(talk, true, plain(*tokenizer))
                    .lost_thoughts);
    EXPECT_FALSE(make("{% for m in messages %}{{ m.thinking }}{{ m.content }}{% endfor %}")
                     .encode(talk, true, plain(*tokenizer))
                     .lost_thoughts);
  }
}

// A talk as agents have it: of `count` blocks, each of a question, calls with their answers, and an answer
ordered_json long_talk(int count, int calls, const std::function<bool(int)>& thinks, bool uses_tools) {
  ordered_json messages = ordered_json::array();
  int number = 0;
  const auto add = [&](const char* role, const std::string& content) -> ordered_json& {
    messages.push_back({{"role", role}, {"content", content}});
    if (std::string_view(role) == "assistant" && thinks(++number))
      messages.back()["reasoning_content"] = fmt::format("thought {}", number);
    return messages.back();
  };
  add("system", "Be brief.");
  for (int i = 0; i < count; ++i) {
    add("user", fmt::format("question {}", i * i));
    for (int k = 0; k < calls; ++k) {
      if (!uses_tools) {
        add("assistant", fmt::format("step {}", k));
        add("user", "go on");
        continue;
      }
      add("assistant",
          "")["tool_calls"] = {{{"type", "function"},
                                {"id", "abcdefghi"},
                                {"function", {{"name", "look"}, {"arguments", {{"at", i + k}}}}}}};
      add("tool", "seen")["tool_call_id"] = "abcdefghi";
    }
    add("assistant", fmt::format("answer {}\n", i % 7));
  }
  return {{"messages", messages}};
}

// The ids and what counts, or why there are none
std::string outcome(const ChatTemplate& chat, const ordered_json& talk, const Tokenizer& tokenizer) {
  try {
    std::string made;
    for (const ChatPart& part : chat.encode(conversation_of(talk), false, plain(tokenizer)).parts)
      made += fmt::format("{}{} ", part.counts ? "+" : "-", checksum(part.ids));
    return made;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_F(ChatTemplateTest, LongTalksAreCutAsShortOnes) {
  std::vector<ChatForm> forms{chat_form("chatml"), chat_form("llama3")};
  if (const auto found = testing::shared_data("chat_templates"); found.missing.empty())
    for (const auto& entry : fs::directory_iterator(found.path))
      forms.push_back(chat_form(entry.path().string()));
  const auto llama3 = load_tokenizer(write("llama3.json", llama3_chat_tokenizer()).string());
  std::vector<ordered_json> talks;
  for (const bool tools : {false, true})
    for (const auto& thinks : std::initializer_list<std::function<bool(int)>>{
             [](int) { return false; }, [](int) { return true; }, [](int i) { return i > 20; },
             [](int i) { return i == 21; }})
      for (const auto& [count, calls] : {std::pair(20, 0), std::pair(1, 20), std::pair(12, 2)})
        talks.push_back(long_talk(count, calls, thinks, tools));
  for (const ChatForm& form : forms) {
    const Tokenizer& one = form.name == "llama3" ? *llama3 : *tokenizer;
    const ChatTemplate by_kind(form, one, {.most_rendered = 0}), each(form, one, {.most_rendered = 1 << 30});
    for (const ordered_json& talk : talks)
      EXPECT_EQ(outcome(by_kind, talk, one), outcome(each, talk, one)) << form.name << talk;
  }
}

TEST_F(ChatTemplateTest, TheTimeOfATalkIsLinear) {
  const std::string with_tools =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
      "<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const auto never = [](int) { return false; };
  for (const auto& [jinja, talk] : {std::pair(chat_form("chatml").jinja, long_talk(1500, 0, never, false)),
                                    std::pair(with_tools, long_talk(1, 1499, never, true))}) {
    const auto begin = std::clock();
    const EncodedChat encoded = make(jinja).encode(conversation_of(talk), false, plain(*tokenizer));
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_EQ(std::ranges::count_if(encoded.parts, [](const ChatPart& part) { return part.counts; }), 1500);
    EXPECT_LT(seconds, 5);  // 0.3 s; as many renderings as answers take ten times as long
  }
}

TEST_F(ChatTemplateTest, TheUserSetsVariablesAndTheDate) {
  const auto file = write(
      "t.jinja",
      "{{ strftime_now('%d %b %Y') }} {{ a }} {{ b }} {% for m in messages %}{{ m.content }}{% endfor %}");
  const auto chat = choose_chat_template(
      {.named = file.string(), .values = {"a=false", "b=x y"}, .date = "2026-02-03"}, {}, *tokenizer);
  Conversation talk;
  talk.add("user", "hi");
  EXPECT_EQ(chat->prompt_text(talk), "03 Feb 2026 False x y hi");
  for (const char* date : {"2026-02-30", "yesterday", "2026-1-1"})
    expect_error([&] { choose_chat_template({.named = "chatml", .date = date}, {}, *tokenizer); },
                 {"--date", date});
  expect_error([&] { choose_chat_template({.named = "chatml", .values = {"a"}}, {}, *tokenizer); },
               {"--template-value", "NAME=VALUE"});
  expect_error([&] { choose_chat_template({.named = "gpt5"}, {}, *tokenizer); },
               {"gpt5", "chatml", "llama3"});
}

}  // namespace
}  // namespace tessera
