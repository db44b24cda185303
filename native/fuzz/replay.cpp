// Runs a target on the files that are given, and on those in folders: for compilers without libFuzzer.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/target.h"

namespace {

int replayed = 0;

void replay(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size());
    ++replayed;
}

}  // namespace

int main(int count, char** paths) {
    for (int i = 1; i < count; ++i) {
        if (!std::filesystem::is_directory(paths[i])) {
            replay(paths[i]);
            continue;
        }
        for (const auto& entry : std::filesystem::directory_iterator(paths[i])) replay(entry.path());
    }
    std::printf("%d inputs\n", replayed);
    return replayed > 0 ? 0 : 1;
}
