#include "data/chat/chat_request.h"
#include "kernels/base/command_line.h"

namespace tessera {

void add_chat_options(CLI::App& app, ChatRequest& request, const std::string& texts) {
  app.add_option(
         "--chat-template", request.named,
         "How conversations are written: chatml, llama3, or a file with a template in Jinja; by default the "
         "template beside the tokenizer, else that whose special tokens it has")
      ->type_name("NAME|FILE");
  app.add_option("--template-value", request.values,
                 "A variable of the chat template, as in enable_thinking=false; may be given many times")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("--date", request.date,
                 "The day that a chat template may write, YYYY-MM-DD; by default today")
      ->type_name("DATE");
  add_word_option(app, "--special-tokens", request.special,
                  "What names of special tokens in " + texts + " are: text, or parse: the tokens")
      ->default_str(name_of(request.special));
}

}  // namespace tessera
