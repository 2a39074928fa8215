#include <iostream>

int main() {
  std::cerr << "evaluate: error: not built yet\n";
  return 1;
}
