// ./report runs/a runs/b --output compare.html
#include <CLI/CLI.hpp>
#include <iostream>

#include "train/report/report_command.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Draws the curves of runs: loss, learning rate, gradient norm, tokens/s, MFU, memory and samples, in "
      "one\n"
      "page that opens from disk. Each run keeps such a page of itself, runs/NAME/report.html.\n\n"
      "  ./report runs/a runs/b --output compare.html    both on top of each other\n"
      "  ./report runs/a                                 writes runs/a/report.html anew\n"
      "  ./report runs/a --svg a.svg                     a picture besides, for a document\n"};
  tessera::ReportOptions options;
  app.add_option("runs", options.runs, "Folders of runs, which hold metrics.jsonl")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--output", options.output,
                 "The page to write; default: of one run its report.html, of several compare.html")
      ->type_name("FILE");
  app.add_option("--svg", options.svg, "Also draw the curves into this file")->type_name("FILE");
  try {
    app.parse(argc, argv);
    tessera::report_command(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << "report: error: " << error.what() << "; see ./report --help\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "report: error: " << error.what() << '\n';
    return 1;
  }
}
