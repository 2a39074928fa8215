// A headless browser, for pages that open from disk.
#pragma once

#include <cstdlib>

#include "tests/train_program.h"

namespace tessera::testing {

// On a PATH; "": there is none. A folder that may not be read, or is none, is passed over, as a shell does.
inline std::string find_browser(const std::string& path = getenv("PATH") ? getenv("PATH") : "") {
  namespace fs = std::filesystem;
  std::stringstream folders(path);
  for (std::string at; std::getline(folders, at, ':');)
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
      if (std::error_code error;
          fs::is_regular_file(fs::path(at) / name, error) && access((fs::path(at) / name).c_str(), X_OK) == 0)
        return fs::path(at) / name;
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
