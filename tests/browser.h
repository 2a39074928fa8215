// A headless browser, for pages that open from disk.
#pragma once

#include <cstdlib>

#include "tests/train_program.h"

namespace tessera::testing {

// "": there is none on the PATH.
inline std::string find_browser() {
  std::stringstream path(getenv("PATH") ? getenv("PATH") : "");
  for (std::string at; std::getline(path, at, ':');)
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      std::error_code unreadable;  // a folder that may not be entered holds no browser for us
      if (std::filesystem::exists(std::filesystem::path(at) / name, unreadable))
        return std::filesystem::path(at) / name;
    }
  return "";
}

// The document of `page`, in `folder`, once its scripts are done. The network is out of reach.
inline ProcessResult open_in_browser(const std::string& browser, const std::filesystem::path& folder,
                                     const std::string& page, const std::string& fragment = "") {
  return run_process(
      "/usr/bin/timeout",
      {"120", browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
       "--user-data-dir=" + (folder / "browser").string(), "--host-resolver-rules=MAP * ~NOTFOUND",
       "--window-size=1100,1600", "--dump-dom", "file://" + (folder / page).string() + fragment},
      {.folder = folder});
}

}  // namespace tessera::testing
