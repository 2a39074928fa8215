// evaluation.tasks: none, a path or a list, as a file and the command line have it.
#include "tests/data/support.h"
#include "train/config/config_keys.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"

namespace tessera::testing {
namespace {

using Paths = std::vector<std::string>;

struct TaskPaths : InTempFolder {
  Config load(const std::string& yaml, const Paths& overrides = {}) const {
    return load_config(write("a.yaml", yaml), overrides);
  }
};

TEST_F(TaskPaths, AreOneOrSeveral) {
  EXPECT_EQ(load("").evaluation.tasks, Paths{});
  EXPECT_EQ(load("evaluation:\n  tasks: none\n").evaluation.tasks, Paths{});
  EXPECT_EQ(load("evaluation:\n  tasks: a.jsonl\n").evaluation.tasks, Paths{"a.jsonl"});
  EXPECT_EQ(load("evaluation:\n  tasks: [a.jsonl, \"arc:b c.jsonl\"]\n").evaluation.tasks,
            (Paths{"a.jsonl", "arc:b c.jsonl"}));
  EXPECT_EQ(load("evaluation:\n  tasks:\n    - a\n    - b\n").evaluation.tasks, (Paths{"a", "b"}));
  EXPECT_EQ(load("", {"evaluation.tasks=[a, b]"}).evaluation.tasks, (Paths{"a", "b"}));
  EXPECT_EQ(load("evaluation:\n  tasks: a\n", {"evaluation.tasks="}).evaluation.tasks, Paths{});
  EXPECT_EQ(load("", {"evaluation.task_items=all"}).evaluation.task_items, 0);
  EXPECT_EQ(load("", {"evaluation.task_items=5"}).evaluation.task_items, 5);
}

TEST_F(TaskPaths, ReadBackWhatIsPrinted) {
  for (const Paths& paths : {Paths{}, Paths{"a"}, Paths{"a \"b\"", "c,d", "e: f", "ä"}}) {
    Config config = load("");
    config.evaluation.tasks = paths;
    EXPECT_EQ(load(print_config(config)).evaluation.tasks, paths);
  }
}

TEST_F(TaskPaths, RefuseWhatIsNoPath) {
  const auto refused = [&](const std::string& value, std::initializer_list<std::string_view> words) {
    expect_error([&] { load("evaluation:\n  tasks: " + value + "\n"); }, words);
  };
  refused("{a: b}", {"a.yaml:2:", "evaluation.tasks", "none", "[a, b]"});
  refused("[a, [b]]", {"evaluation.tasks", "text"});
  refused("[a, \"\"]", {"empty path"});
  refused("[a, b, a]", {"a.yaml:2:", "names \"a\" twice"});
  expect_error([&] { load("evaluation:\n  tasks: a\n  every: 0\n"); },
               {"evaluation.tasks", "needs evaluations", "evaluation.every"});
}

}  // namespace
}  // namespace tessera::testing
