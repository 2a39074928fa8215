// The tokens of conversations: turn by turn they are those of the whole conversation.
#include "train/generate/chat.h"

#include <gtest/gtest.h>

#include "data/tokenizers/load_tokenizer.h"

namespace tessera {
namespace {

std::unique_ptr<Tokenizer> fixture(const std::string& name) {
  return load_tokenizer(
      name == kBytesTokenizer ? name : TESSERA_SOURCE_DIR "/tests/fixtures/tokenizers/" + name + ".json");
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts) {
  std::vector<int32_t> ids;
  for (const ChatPart& part : parts)
    tokenizer.encode(part.text, part.is_marker ? SpecialTokens::kMatched : SpecialTokens::kAsText, ids);
  return ids;
}

class ChatTurnsTest : public ::testing::TestWithParam<std::pair<const char*, ChatTemplate>> {};

TEST_P(ChatTurnsTest, TurnsAreThoseOfTheWholeConversation) {
  const auto tokenizer = fixture(GetParam().first);
  const ChatTemplate chat = GetParam().second;
  const ChatTurns turns(chat, *tokenizer);
  const std::vector<int32_t> marker = tokenizer->encode(turns.end_marker(), SpecialTokens::kMatched);
  for (const bool has_marker : {false, true})
    for (const char* system : {"", "Be brief."}) {
      std::vector<int32_t> ids = turns.opening(system, "Who <|im_end|> are you?");
      const auto answer = tokenizer->encode("I am a model.");
      ids.insert(ids.end(), answer.begin(), answer.end());
      if (has_marker) ids.insert(ids.end(), marker.begin(), marker.end());
      const auto next = turns.next("Since when?", has_marker);
      ids.insert(ids.end(), next.begin(), next.end());
      Conversation whole{{Role::kUser, "Who <|im_end|> are you?"},
                         {Role::kAssistant, "I am a model."},
                         {Role::kUser, "Since when?"},
                         {Role::kAssistant, "X"}};
      if (*system) whole.insert(whole.begin(), {Role::kSystem, system});
      // Up to the last answer
      std::vector<ChatPart> parts = render(chat, whole);
      while (parts.back().text != "X") parts.pop_back();
      parts.pop_back();
      EXPECT_EQ(ids, encoded(*tokenizer, parts)) << tokenizer->decode(ids, true);
    }
}

INSTANTIATE_TEST_SUITE_P(, ChatTurnsTest,
                         ::testing::Values(std::pair("qwen2", ChatTemplate::kChatMl),
                                           std::pair("llama3", ChatTemplate::kLlama3),
                                           std::pair("bytes", ChatTemplate::kChatMl)),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(ChatTemplateChoice, IsTheNamedOneOrThatOfTheTokenizer) {
  const auto qwen = fixture("qwen2"), llama = fixture("llama3"), bytes = fixture("bytes");
  EXPECT_EQ(choose_chat_template({}, *qwen), ChatTemplate::kChatMl);
  EXPECT_EQ(choose_chat_template({}, *llama), ChatTemplate::kLlama3);
  EXPECT_EQ(choose_chat_template(ChatTemplate::kChatMl, *bytes), ChatTemplate::kChatMl);
  EXPECT_THROW(choose_chat_template({}, *bytes), Error);
  EXPECT_EQ(ChatTurns(ChatTemplate::kChatMl, *qwen).end_token(), qwen->special_token("<|im_end|>"));
  EXPECT_EQ(ChatTurns(ChatTemplate::kLlama3, *llama).end_token(), llama->special_token("<|eot_id|>"));
  EXPECT_EQ(ChatTurns(ChatTemplate::kChatMl, *bytes).end_token(), -1);
  EXPECT_EQ(ChatTurns(ChatTemplate::kChatMl, *bytes).end_marker(), "<|im_end|>");
}

}  // namespace
}  // namespace tessera
