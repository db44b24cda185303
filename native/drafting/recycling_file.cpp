#include "drafting/recycling_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace medusa {
namespace {

constexpr std::string_view magic = "medusa recycled 1\n";

uint64_t checksum(std::string_view bytes) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ull;
    return hash;
}

template <typename Value>
void put(std::string& out, Value value) {
    char raw[sizeof(value)];
    std::memcpy(raw, &value, sizeof(value));
    out.append(raw, sizeof(value));
}

void put(std::string& out, const RecyclingTable::Entry& entry) {
    for (const Token token : entry.tokens) put(out, token);
    put(out, entry.lead);
}

[[noreturn]] void damaged() {
    throw Error("the kept table of likely tokens is damaged, or of another model");
}

// Reads what put() wrote; damaged() past the end.
class Reader {
  public:
    Reader(std::string_view bytes, int vocab_size) : bytes_(bytes), vocab_size_(vocab_size) {}

    template <typename Value>
    Value take() {
        Value value;
        if (bytes_.size() < sizeof(value)) damaged();
        std::memcpy(&value, bytes_.data(), sizeof(value));
        bytes_.remove_prefix(sizeof(value));
        return value;
    }
    Token token() {
        const auto token = take<Token>();
        if (token < 0 || token >= vocab_size_) damaged();
        return token;
    }
    // Distinct tokens; fewer than `width` are known where -1 follows them.
    RecyclingTable::Entry entry() {
        RecyclingTable::Entry entry;
        bool ended = false;
        for (auto at = entry.tokens.begin(); at != entry.tokens.end(); ++at) {
            *at = take<Token>();
            const bool twice = *at >= 0 && std::find(entry.tokens.begin(), at, *at) != at;
            if (*at < -1 || *at >= vocab_size_ || twice || (ended && *at >= 0)) damaged();
            ended = *at < 0;
        }
        entry.lead = take<uint8_t>();
        if (entry.tokens[0] < 0 || entry.lead >= RecyclingTable::leads) damaged();
        return entry;
    }
    bool at_end() const { return bytes_.empty(); }

  private:
    std::string_view bytes_;
    int vocab_size_;
};

}  // namespace

std::string to_bytes(const RecyclingTable& table, const RecyclingWorth& worth) {
    std::string out(magic);
    put(out, static_cast<int32_t>(table.vocab_size()));
    for (const double count : worth.counts()) put(out, count);
    std::string singles, pairs;
    int32_t single_count = 0, pair_count = 0;
    table.each_single([&](Token token, const RecyclingTable::Entry& entry) {
        put(singles, token);
        put(singles, entry);
        ++single_count;
    });
    table.each_pair([&](Token before, Token token, const RecyclingTable::Entry& entry) {
        put(pairs, before);
        put(pairs, token);
        put(pairs, entry);
        ++pair_count;
    });
    put(out, single_count);
    put(out, pair_count);
    out += singles + pairs;
    put(out, checksum(out));
    return out;
}

void from_bytes(std::string_view bytes, RecyclingTable& table, RecyclingWorth& worth) {
    const int vocab_size = table.vocab_size();
    if (bytes.size() < magic.size() + sizeof(uint64_t) || !bytes.starts_with(magic)) damaged();
    const auto content = bytes.substr(0, bytes.size() - sizeof(uint64_t));
    if (Reader(bytes.substr(content.size()), vocab_size).take<uint64_t>() != checksum(content)) damaged();
    Reader reader(content.substr(magic.size()), vocab_size);
    if (reader.take<int32_t>() != vocab_size) damaged();
    RecyclingTable read_table(vocab_size);
    RecyclingWorth read_worth;
    std::vector<double> counts(read_worth.counts().size());
    for (double& count : counts) count = reader.take<double>();
    if (!read_worth.set_counts(counts)) damaged();
    const auto singles = reader.take<int32_t>(), pairs = reader.take<int32_t>();
    for (int32_t i = 0; i < singles; ++i) {
        const Token token = reader.token();
        read_table.put(-1, token, reader.entry());
    }
    for (int32_t i = 0; i < pairs; ++i) {
        const Token before = reader.token(), token = reader.token();
        read_table.put(before, token, reader.entry());
    }
    if (!reader.at_end()) damaged();
    table = std::move(read_table);
    worth = read_worth;
}

}  // namespace medusa
