// Reading multiple-choice tasks: the formats, how choices are encoded, and what is refused.
#include "train/tasks/read_task.h"

#include <nlohmann/json.hpp>

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/byte_tokenizer.h"
#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/support.h"
#include "tests/process.h"
#include "train/tasks/score.h"

namespace tessera::testing {
namespace {

using Ids = std::vector<int32_t>;

struct ReadTask : InTempFolder {
  std::unique_ptr<Tokenizer> bytes = load_tokenizer("bytes");

  Task read(const std::string& content, const std::string& format = "") const {
    const std::string path = write("task.jsonl", content).string();
    return read_task(format.empty() ? path : format + ":" + path, bytes.get());
  }
  void refused(const std::string& content, std::initializer_list<std::string_view> words,
               const std::string& format = "") const {
    SCOPED_TRACE(content);
    expect_error([&] { read(content, format); }, words);
  }
  std::string text(const Ids& ids) const { return bytes->decode(ids); }
};

// llm.c's format, by hand
std::string item_bytes(uint64_t number, uint64_t label, const Ids& context, const std::vector<Ids>& choices) {
  Ids all{static_cast<int32_t>(number), static_cast<int32_t>(label), static_cast<int32_t>(choices.size())};
  const auto append = [&](const Ids& ids) {
    all.push_back(static_cast<int32_t>(ids.size()));
    all.insert(all.end(), ids.begin(), ids.end());
  };
  append(context);
  for (const Ids& choice : choices) append(choice);
  std::string text = little_endian(65535, 2) + little_endian(2 * (all.size() + 2), 2);
  for (const int32_t value : all) text += little_endian(static_cast<uint64_t>(value), 2);
  return text;
}
std::string eval_file(const std::vector<std::string>& items, uint64_t version = 1) {
  std::string text = little_endian(20240522, 4) + little_endian(version, 4) + little_endian(items.size(), 4);
  text.resize(1024, '\0');
  for (const std::string& item : items) text += item;
  return text;
}

TEST_F(ReadTask, OfHellaSwag) {
  const Task task = read(
      R"({"ind": 7, "activity_label": "x", "ctx_a": "A b", "ctx_b": "c", "ctx": "A b c", "endings": ["no.", "yes ä"], "label": 1, "split": "val"})"
      "\n\n"
      R"({"ctx": "D", "endings": ["1", "2", "3"], "label": "0"})"
      "\n");
  EXPECT_EQ(task.name, "task");
  EXPECT_EQ(task.format, TaskFormat::kHellaSwag);
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(text(task.items[0].context), "A b c");
  EXPECT_EQ(text(task.items[0].choices[1].tokens), " yes ä");
  EXPECT_EQ(task.items[0].choices[1].bytes, 6);  // without the blank; ä has two
  EXPECT_EQ(task.items[0].answer, 1);
  EXPECT_EQ(task.items[1].answer, 0);
  EXPECT_EQ(task.items[1].choices.size(), 3u);
  EXPECT_EQ(task.place_of(task.items[1]), (folder_ / "task.jsonl:3").string());
}

TEST_F(ReadTask, OfArcInBothOfItsForms) {
  const Task task = read(
      R"({"id": "a", "question": "Why?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"})"
      "\n"
      R"({"id": "b", "question": {"stem": "Who?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}, "answerKey": "1"})");
  EXPECT_EQ(task.format, TaskFormat::kArc);
  EXPECT_EQ(text(task.items[0].context), "Question: Why?\nAnswer:");
  EXPECT_EQ(text(task.items[1].context), "Question: Who?\nAnswer:");
  EXPECT_EQ(text(task.items[0].choices[1].tokens), " y");
  EXPECT_EQ(task.items[0].answer, 1);
  EXPECT_EQ(task.items[1].answer, 0);
}

TEST_F(ReadTask, OfContextsAndChoicesAsTheyAre) {
  const Task task = read(R"({"context": "a b ", "choices": ["c", " d"], "label": 0})"
                         "\n"
                         R"({"context": "", "choices": ["c", "d"], "label": 0})");
  EXPECT_EQ(task.format, TaskFormat::kChoices);
  EXPECT_EQ(text(task.items[0].context), "a b");  // the blank at its end belongs to the choices
  EXPECT_EQ(text(task.items[0].choices[0].tokens), " c");
  EXPECT_EQ(text(task.items[0].choices[1].tokens), "  d");
  EXPECT_EQ(task.items[0].choices[0].bytes, 1);
  EXPECT_EQ(task.items[0].choices[1].bytes, 1);  // without the blank before it
  const Task blanks = read(R"({"context": "a", "choices": [" \n b c", "  "], "label": 0})");
  EXPECT_EQ(blanks.items[0].choices[0].bytes, 3);
  EXPECT_EQ(blanks.items[0].choices[1].bytes, 2);
  EXPECT_EQ(task.items[1].context, Ids{bytes->end_of_text()});
}

// A merge that spans the end of the context
TEST_F(ReadTask, AChoiceThatAddsNoTokenIsEncodedByItself) {
  TokenizerDefinition definition = bytes_as_bpe();
  definition.tokens.resize(257);
  definition.tokens.push_back("ab");
  definition.merges = {{.left = 'a', .right = 'b', .result = 257}};
  const auto bpe = make_bpe_tokenizer(std::move(definition), 256, "", "test");
  const std::string path = write("task.jsonl", R"({"context": "a", "choices": ["b", "bc", "d"], "label": 0})"
                                               "\n"
                                               R"({"context": "x", "choices": ["b", "c"], "label": 0})")
                               .string();
  const Task task = read_task(path, bpe.get());
  EXPECT_EQ(task.items[0].context, Ids{'a'});
  EXPECT_EQ(task.items[0].choices[0].tokens, Ids{'b'});  // ab is one token, as a is
  EXPECT_EQ(task.items[0].choices[1].tokens, Ids{'c'});  // beyond the one token of the context: ab, c
  EXPECT_EQ(task.items[0].choices[2].tokens, Ids{'d'});
  EXPECT_TRUE(task.items[0].apart);
  EXPECT_FALSE(task.items[1].apart);
  const std::string notice = notice_of_items_apart(task);
  EXPECT_NE(notice.find("1 of 2 items, the first at " + path + ":1,"), std::string::npos) << notice;
  EXPECT_EQ(to_json(task_result(task, {-1, -2, -3, -1, -2}))["items_apart"], 1);
}

// As in lm-evaluation-harness
TEST_F(ReadTask, NamesOfSpecialTokensAreTheTokens) {
  const auto bpe = make_bpe_tokenizer(bytes_as_bpe(), 256, "", "test");
  const std::string path =
      write("task.jsonl", R"({"context": "a<|endoftext|>b", "choices": ["<|endoftext|>", "c"], "label": 0})")
          .string();
  const Task task = read_task(path, bpe.get());
  EXPECT_EQ(task.items[0].context, (Ids{'a', 256, 'b'}));
  EXPECT_EQ(task.items[0].choices[0].tokens, Ids{256});
}

TEST_F(ReadTask, AtMostSoManyItemsOfACompressedFileToo) {
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += R"({"context": "a", "choices": ["c", "d"], "label": 0})"
             "\n";
  const std::string path = write("many.jsonl", lines).string();
  EXPECT_EQ(read_task(path, bytes.get(), 3).items.size(), 3u);
  EXPECT_EQ(read_task(path, bytes.get()).items.size(), 20u);
  ASSERT_EQ(testing::run_process("/usr/bin/env", {"gzip", "-k", path}, {.folder = folder_}).status, 0);
  const Task packed = read_task(path + ".gz", bytes.get(), 5);
  EXPECT_EQ(packed.items.size(), 5u);
  EXPECT_EQ(packed.name, "many");
}

TEST_F(ReadTask, RefusesWhatItDoesNotKnowWithFileAndLine) {
  const std::string good = R"({"context": "a", "choices": ["c", "d"], "label": 0})"
                           "\n";
  refused(good + "{\"context\": \"a\", ", {"task.jsonl:2"});
  refused(good + "[1]", {"task.jsonl:2", "JSON object"});
  refused(R"({"text": "a"})", {"task.jsonl:1", "context, choices and label", "found text"});
  refused(good + R"({"context": "a", "choices": ["c", "d"], "labels": 0})",
          {"task.jsonl:2", "choices", "label", "label"});
  refused(R"({"context": "a", "choices": ["c", "d"], "label": 0, "shots": 5})",
          {"task.jsonl:1", "unknown field of choices", "shots"});
  refused(R"({"context": "a", "choices": ["c", "d"], "label": 2})", {"label is 2", "2 choices, 0 to 1"});
  refused(R"({"context": "a", "choices": ["c", "d"], "label": -1})", {"label"});
  refused(R"({"context": "a", "choices": ["c", "d"], "label": ""})", {"label"});
  refused(R"({"context": "a", "choices": ["c"], "label": 0})", {"2 choices", "found 1"});
  refused(R"({"context": "a", "choices": ["c", ""], "label": 0})", {"choice 1 is empty"});
  refused(R"({"context": "a", "choices": ["c", 3], "label": 0})", {"list of texts", "3"});
  refused(R"({"context": 5, "choices": ["c", "d"], "label": 0})", {"context"});
  refused(R"({"ctx": "a", "endings": "b", "label": 0})", {"endings", "list of texts"});
  refused(R"({"question": "q", "choices": {"text": ["x"], "label": ["A", "B"]}, "answerKey": "B"})",
          {"1 texts and 2 labels"});
  refused(R"({"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "C"})",
          {"answerKey is \"C\"", "A and B"});
  refused(R"({"question": {"stem": "q", "options": []}, "answerKey": "C"})", {"options"});
  refused("\n\n", {"holds no"});
  refused(good, {"hellaswag", "ctx, endings and label"}, "hellaswag");
  refused(good, {"no such file", "hellaswag, arc, choices or llm.c"}, "helaswag");
  expect_error([&] { read_task((folder_ / "none.jsonl").string(), bytes.get()); }, {"does not exist"});
  const std::string path = write("a.jsonl", good).string();
  expect_error([&] { read_task(path, nullptr); }, {"needs a tokenizer"});
}

TEST_F(ReadTask, OfLlmCWithItsTokens) {
  const std::vector<Ids> choices{{5, 6}, {7}, {8, 9, 10}};
  const auto path =
      write("task.bin", eval_file({item_bytes(0, 2, {1, 2, 3}, choices), item_bytes(1, 0, {4}, {{1}, {2}})}));
  const Task task = read_task(path.string(), nullptr);
  EXPECT_EQ(task.format, TaskFormat::kLlmC);
  EXPECT_FALSE(task.has_bytes());
  ASSERT_EQ(task.items.size(), 2u);
  EXPECT_EQ(task.items[0].context, (Ids{1, 2, 3}));
  for (size_t c = 0; c < choices.size(); ++c) EXPECT_EQ(task.items[0].choices[c].tokens, choices[c]);
  EXPECT_EQ(task.items[0].answer, 2);
  EXPECT_EQ(task.items[1].choices[1].tokens, Ids{2});
  EXPECT_EQ(read_task("llm.c:" + path.string(), nullptr, 1).items.size(), 1u);
}

TEST_F(ReadTask, RefusesAWrongFileOfLlmC) {
  const std::string good = item_bytes(0, 1, {1}, {{2}, {3}});
  const auto refused = [&](const std::string& content, std::initializer_list<std::string_view> words) {
    const std::string path = write("wrong.bin", content).string();
    expect_error([&] { read_task(path, nullptr); }, words);
  };
  refused(eval_file({good}, 2), {"version 2, supported is 1"});
  refused(eval_file({}), {"0 items"});
  refused(eval_file({good}).substr(0, 500), {"header takes 1024"});
  refused(eval_file({good}) + "x", {"1 bytes after its 1 items"});
  const std::string whole = eval_file({good, item_bytes(1, 1, {1}, {{2}, {3}})});
  refused(whole.substr(0, whole.size() - 2), {"wrong.bin: item 2, at byte", "the file has"});
  refused(eval_file({good, good}), {"item 2", "number is 0", "1"});
  refused(eval_file({item_bytes(0, 2, {1}, {{2}, {3}})}), {"choice 2 of 2"});
  refused(eval_file({item_bytes(0, 0, {1}, {{2}})}), {"at least 2"});
  refused(eval_file({item_bytes(0, 0, {}, {{2}, {3}})}), {"the context"});
  refused(eval_file({item_bytes(0, 0, {1}, {{2}, {}})}), {"a choice"});
  std::string longer = good;
  longer[2] = static_cast<char>(longer[2] - 2);
  refused(eval_file({longer}), {"is missing"});
  refused(eval_file({std::string(good.size(), '\1')}), {"mark 65535"});
  expect_error([&] { read_task("llm.c:" + write("t.jsonl", "{}").string(), nullptr); }, {"file of a task"});
}

TEST_F(ReadTask, SeveralHaveNamesOfTheirOwnAndFitTheModel) {
  const std::string good = R"({"context": "a", "choices": ["cde", "d"], "label": 0})"
                           "\n";
  const std::string one = write("one.jsonl", good).string(), two = write("two.jsonl", good).string();
  const TaskReader reader{.tokenizer = bytes.get(), .vocab_size = 257, .sequence_length = 3};
  EXPECT_EQ(read_tasks({one, two}, reader).size(), 2u);
  EXPECT_TRUE(read_tasks({}, reader).empty());
  expect_error([&] { read_tasks({one, one}, reader); }, {"the task one"});
  TaskReader narrow = reader;
  narrow.sequence_length = 2;
  expect_error([&] { read_tasks({one}, narrow); }, {"one.jsonl:1: choice 0", "3 tokens", "has 2"});
  narrow = reader;
  narrow.vocab_size = 100;
  expect_error([&] { read_tasks({one}, narrow); }, {"one.jsonl:1", "vocabulary of 100"});
}

}  // namespace
}  // namespace tessera::testing
