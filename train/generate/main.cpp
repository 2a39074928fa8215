#include <iostream>

int main() {
  std::cerr << "generate: error: not built yet\n";
  return 1;
}
