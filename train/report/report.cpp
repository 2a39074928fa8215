// ./report runs/a runs/b --output compare.html
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "train/report/report_command.h"

int main(int argc, char** argv) {
  tessera::start_process();
  tessera::Options app{
      "Draws the curves of runs: loss, learning rate, gradient norm, tokens/s, MFU, memory, samples and "
      "events, in one page that opens from disk. Each run keeps such a page of itself, "
      "runs/NAME/report.html.",
      "report"};
  tessera::ReportOptions options;
  app.add("runs", options.runs, "Folders of runs, which hold metrics.jsonl").type_name("FOLDER");
  app.add("--output", options.output,
          "The page to write; default: of one run its report.html, of several compare.html")
      .type_name("FILE");
  app.add("--svg", options.svg, "Also draw the curves into this file").type_name("FILE");
  app.add("--validation-svg", options.validation_svg,
          "Also draw the validation losses alone, close to the lowest, into this file")
      .type_name("FILE");
  app.add("--position-svg", options.position_svg,
          "Also draw the validation loss by position, of the first and the newest evaluation, into this "
          "file")
      .type_name("FILE");
  app.footer(
      "Examples:\n"
      "  ./report runs/a runs/b --output compare.html\n"
      "  ./report runs/a --svg a.svg\n"
      "  ./report runs/a runs/b --validation-svg losses.svg\n\n"
      "Exit code 1: the command line is wrong, a run cannot be read, or a file cannot be written.");
  if (const auto exit_code = tessera::parse_command_line({app, argc, argv})) return *exit_code;
  return tessera::exit_code_of("report", [&] {
    tessera::report_command(options);
    return 0;
  });
}
