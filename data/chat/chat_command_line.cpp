#include "data/chat/chat_request.h"
#include "kernels/base/command_line.h"

namespace tessera {

void add_chat_options(Options& app, ChatRequest& request, const std::string& texts) {
  app.add("--chat-template", request.named,
          "How conversations are written: chatml, llama3, or a file with a template in Jinja; by default the "
          "template beside the tokenizer, else that whose special tokens it has")
      .type_name("NAME|FILE");
  app.add("--template-value", request.values,
          "A variable of the chat template, as in enable_thinking=false; may be given many times")
      .type_name("NAME=VALUE")
      .one_at_a_time();
  app.add("--date", request.date, "The day that a chat template may write, YYYY-MM-DD; by default today")
      .type_name("DATE");
  app.add_word("--special-tokens", request.special,
               "What names of special tokens in " + texts + " are: text, or parse: the tokens")
      .show_default(name_of(request.special));
}

}  // namespace tessera
