// The tokens of conversations: turn by turn they are those of the whole conversation.
#include "train/generate/chat.h"

#include <gtest/gtest.h>

#include "data/chat/chat_request.h"
#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

struct ChatTest : InTempFolder {
  std::unique_ptr<Tokenizer> tokenizer(const std::string& name) const {
    if (name == kBytesTokenizer) return load_tokenizer(name);
    return load_tokenizer(
        write("tokenizer.json", name == "llama3" ? llama3_chat_tokenizer() : plain_tokenizer(name)).string());
  }
};
struct ChatTurnsTest : ChatTest, ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(ChatTurnsTest, TurnsAreThoseOfTheWholeConversation) {
  const auto tokenizer = ChatTest::tokenizer(GetParam().first);
  const auto chat = choose_chat_template({.named = GetParam().second}, {}, *tokenizer);
  for (const bool ended : {false, true})
    for (const char* system : {"", "Be brief."}) {
      ChatTurns turns(*chat, *tokenizer, system);
      const auto end = turns.turn_end();
      const std::vector<int32_t> marker =
          end.token >= 0 ? std::vector{end.token} : tokenizer->encode(end.marker, SpecialTokens::kMatched);
      std::vector<int32_t> ids = turns.ask("Who <|im_end|> are you?").ids;
      const auto answer = tokenizer->encode("I am a model.");
      ids.insert(ids.end(), answer.begin(), answer.end());
      if (ended) ids.insert(ids.end(), marker.begin(), marker.end());
      turns.answer("I am a model.", ended);
      const auto next = turns.ask("Since when?");
      EXPECT_FALSE(next.whole);
      ids.insert(ids.end(), next.ids.begin(), next.ids.end());
      Conversation whole;
      if (*system) whole.add("system", system);
      whole.add("user", "Who <|im_end|> are you?");
      whole.add("assistant", "I am a model.");
      whole.add("user", "Since when?");
      EXPECT_EQ(ids, chat->prompt(whole)) << tokenizer->decode(ids, true);
      turns.forget();
      EXPECT_TRUE(turns.ask("Who?").whole);
    }
}

INSTANTIATE_TEST_SUITE_P(, ChatTurnsTest,
                         ::testing::Values(std::pair("qwen2", "chatml"), std::pair("llama3", "llama3"),
                                           std::pair("bytes", "chatml")),
                         [](const auto& info) { return std::string(info.param.first); });

TEST_F(ChatTest, ATemplateThatRewritesEarlierTurnsIsReadAgain) {
  const auto tokenizer = ChatTest::tokenizer("qwen2");
  const auto file =
      write("t.jinja",
            "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content.split('</t>')[-1] }}<|im_end|>"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}");
  const auto chat = choose_chat_template({.named = file.string()}, {}, *tokenizer);
  ChatTurns turns(*chat, *tokenizer, "");
  turns.ask("a");
  turns.answer("<t>thoughts</t>b", true);
  const auto next = turns.ask("c");
  EXPECT_TRUE(next.whole);
  EXPECT_EQ(tokenizer->decode(next.ids, true),
            "<|im_start|>user a<|im_end|><|im_start|>assistant b<|im_end|><|im_start|>user c<|im_end|>"
            "<|im_start|>assistant ");
}

TEST_F(ChatTest, ATurnEndsWithTheTokenOrTheTextOfItsTemplate) {
  const auto qwen = tokenizer("qwen2"), llama = tokenizer("llama3"), bytes = tokenizer("bytes");
  EXPECT_EQ(choose_chat_template({}, {}, *qwen)->turn_end().token, qwen->special_token("<|im_end|>"));
  EXPECT_EQ(choose_chat_template({}, {}, *llama)->turn_end().token, llama->special_token("<|eot_id|>"));
  EXPECT_EQ(choose_chat_template({}, {}, *bytes), nullptr);
  const auto chat = choose_chat_template({.named = "chatml"}, {}, *bytes);
  EXPECT_EQ(chat->turn_end().token, -1);
  EXPECT_EQ(chat->turn_end().marker, "<|im_end|>");
}

}  // namespace
}  // namespace tessera
