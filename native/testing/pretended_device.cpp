#include "testing/pretended_device.h"

#include "testing/backend_internals.h"

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <set>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "base/common.h"
#include "llama/backend.h"

namespace medusa::testing {
namespace {

extern ggml_backend_buffer_type buffer_type;
extern ggml_backend_device device;
extern ggml_backend_reg registry;

std::mutex behaviour_mutex;
DeviceBehaviour behaviour;
std::atomic<int64_t> allocations_left{0}, graphs_left{0}, used_bytes{0};
std::atomic<bool> is_lost{false};
std::atomic<size_t> graphs{0}, to_device_bytes{0}, to_device{0}, to_host_bytes{0}, to_host{0}, waits{0}, logits{0};

std::mutex operators_mutex;
std::set<std::string> operators;  // that occurred in graphs

void count_operator(const ggml_tensor* node) {
    std::string name = ggml_op_desc(node);
    if (node->src[0]) name += std::string(" ") + ggml_type_name(node->src[0]->type);
    if (node->op == GGML_OP_CPY) name += std::string(" ") + ggml_type_name(node->type);
    const std::lock_guard lock(operators_mutex);
    operators.insert(std::move(name));
}

DeviceBehaviour current() {
    const std::lock_guard lock(behaviour_mutex);
    return behaviour;
}

// Whether this is the call that was meant to fail.
bool fails(std::atomic<int64_t>& left) {
    return left > 0 && --left == 0;
}

// What a buffer is: addresses that tensors carry, with nothing at them, and where the bytes really are.
struct Memory {
    void* addresses;
    void* bytes;
    size_t size;
};

char* real(const ggml_tensor* t) {
    const auto* memory = static_cast<const Memory*>(t->buffer->context);
    return static_cast<char*>(memory->bytes) + (static_cast<char*>(t->data) - static_cast<char*>(memory->addresses));
}

bool is_ours(ggml_backend_buffer_t buffer) {
    return buffer && buffer->buft == &buffer_type;
}

void count_to_device(size_t n) {
    ++to_device;
    to_device_bytes += n;
}

void count_to_host(size_t n) {
    ++to_host;
    to_host_bytes += n;
}

// One queue of work, processed in order by its own thread.
class Stream {
  public:
    ~Stream() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        worker_.join();
    }
    void push(std::function<void()> job) {
        {
            const std::lock_guard lock(mutex_);
            jobs_.push(std::move(job));
            ++pending_;
        }
        wake_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        idle_.wait(lock, [&] { return pending_ == 0; });
    }

  private:
    void run() {
        while (true) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            const auto job = std::move(jobs_.front());
            jobs_.pop();
            lock.unlock();
            job();
            lock.lock();
            if (--pending_ == 0) idle_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::queue<std::function<void()>> jobs_;
    int pending_ = 0;
    bool stop_ = false;
    std::thread worker_{[this] { run(); }};
};

struct Backend {
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    Stream stream;
    bool is_waited_for = true;  // everything the stream was given

    ~Backend() {
        stream.wait();
        ggml_backend_free(cpu);
    }
};

Backend& of(ggml_backend_t backend) {
    return *static_cast<Backend*>(backend->context);
}

// A graph as given to a GPU: later changes to its tensors have no effect.
class Launch {
  public:
    explicit Launch(ggml_cgraph* source) {
        const int n = ggml_graph_n_nodes(source);
        const auto capacity = static_cast<size_t>(std::max(n, 1));
        context_ = ggml_init({ggml_graph_overhead_custom(capacity, false), nullptr, /*no_alloc=*/true});
        graph_ = ggml_new_graph_custom(context_, capacity, false);
        for (int i = 0; i < n; ++i) {
            ggml_tensor* node = copy(ggml_graph_node(source, i));
            count_operator(node);
            for (auto& from : node->src) from = copy(from);
            if (std::string_view(node->name) == "result_output" && (node->flags & GGML_TENSOR_FLAG_COMPUTE)) {
                logits += static_cast<size_t>(node->ne[1]);
            }
            ggml_graph_add_node(graph_, node);
            // A layer's output, [h, tokens]; for the last layer, only that of the requested tokens.
            if (std::string_view(node->name).starts_with("l_out")) tokens_ = std::max(tokens_, node->ne[1]);
        }
    }
    ~Launch() { ggml_free(context_); }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    // How many the model reads; 0: a graph of something else.
    int64_t tokens() const { return tokens_; }
    void compute(ggml_backend_t cpu) const { ggml_backend_graph_compute(cpu, graph_); }

  private:
    ggml_tensor* copy(const ggml_tensor* t) {
        if (!t) return nullptr;
        ggml_tensor*& mine = copies_[t];
        if (mine) return mine;
        tensors_.push_back(*t);
        mine = &tensors_.back();
        if (is_ours(t->buffer) && t->data) mine->data = real(t);
        mine->buffer = nullptr;
        mine->view_src = nullptr;
        return mine;
    }

    std::deque<ggml_tensor> tensors_;
    std::unordered_map<const ggml_tensor*, ggml_tensor*> copies_;
    ggml_context* context_;
    ggml_cgraph* graph_;
    int64_t tokens_ = 0;
};

// The least time a graph takes.
std::chrono::microseconds least_time(const DeviceBehaviour& now, int64_t tokens) {
    if (tokens == 0 || now.passes_us.empty()) return std::chrono::microseconds(0);
    auto at = std::lower_bound(now.passes_us.begin(), now.passes_us.end(), std::pair(tokens, int64_t{0}));
    if (at == now.passes_us.end()) --at;
    return std::chrono::microseconds(at->second);
}

// Buffers.
void free_buffer(ggml_backend_buffer_t buffer) {
    auto* memory = static_cast<Memory*>(buffer->context);
    munmap(memory->addresses, memory->size);
    std::free(memory->bytes);
    used_bytes -= static_cast<int64_t>(memory->size);
    delete memory;
}
void* get_base(ggml_backend_buffer_t buffer) {
    return static_cast<Memory*>(buffer->context)->addresses;
}
void memset_tensor(ggml_backend_buffer_t, ggml_tensor* t, uint8_t value, size_t offset, size_t size) {
    std::memset(real(t) + offset, value, size);
}
void set_tensor(ggml_backend_buffer_t, ggml_tensor* t, const void* data, size_t offset, size_t size) {
    count_to_device(size);
    std::memcpy(real(t) + offset, data, size);
}
void get_tensor(ggml_backend_buffer_t, const ggml_tensor* t, void* data, size_t offset, size_t size) {
    count_to_host(size);
    std::memcpy(data, real(t) + offset, size);
}
bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor* source, ggml_tensor* target) {
    const size_t size = ggml_nbytes(source);
    if (is_ours(source->buffer)) {
        std::memcpy(real(target), real(source), size);
    } else if (ggml_backend_buffer_is_host(source->buffer)) {
        count_to_device(size);
        std::memcpy(real(target), source->data, size);
    } else {
        return false;
    }
    return true;
}
void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    const auto* memory = static_cast<Memory*>(buffer->context);
    std::memset(memory->bytes, value, memory->size);
}

const char* type_name(ggml_backend_buffer_type_t) {
    return "PRETENDED0";
}
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    constexpr size_t page = 4096;
    const size_t n = std::max((size + page - 1) / page * page, page);
    if (fails(allocations_left) || used_bytes + static_cast<int64_t>(n) > current().memory) return nullptr;
    void* addresses = mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
    void* bytes = std::aligned_alloc(page, n);
    if (addresses == MAP_FAILED || !bytes) return nullptr;
    used_bytes += static_cast<int64_t>(n);
    decltype(ggml_backend_buffer::iface) calls{};
    calls.free_buffer = free_buffer;
    calls.get_base = get_base;
    calls.memset_tensor = memset_tensor;
    calls.set_tensor = set_tensor;
    calls.get_tensor = get_tensor;
    calls.cpy_tensor = cpy_tensor;
    calls.clear = clear;
    return ggml_backend_buffer_init(type, calls, new Memory{addresses, bytes, n}, size);
}

// The backend: a stream.
const char* backend_name(ggml_backend_t) {
    return "PRETENDED0";
}
void free_backend(ggml_backend_t backend) {
    delete &of(backend);
    delete backend;
}
void get_tensor_async(ggml_backend_t backend, const ggml_tensor* t, void* data, size_t offset, size_t size) {
    const char* from = real(t) + offset;
    count_to_host(size);
    of(backend).is_waited_for = false;
    of(backend).stream.push([=] { std::memcpy(data, from, size); });
}
void synchronize(ggml_backend_t backend) {
    if (!of(backend).is_waited_for) ++waits;
    of(backend).is_waited_for = true;
    of(backend).stream.wait();
}
ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
    ++graphs;
    const bool failed = fails(graphs_left);
    if (failed && current().lost) is_lost = true;
    if (is_lost) throw std::runtime_error("the pretended device is lost");
    if (failed) return GGML_STATUS_FAILED;
    const auto launch = std::make_shared<const Launch>(graph);
    of(backend).is_waited_for = false;
    of(backend).stream.push([launch, cpu = of(backend).cpu, now = current()] {
        const auto begun = std::chrono::steady_clock::now();
        if (now.delay_us > 0 && (now.delays_heads || launch->tokens() > 0)) {
            std::this_thread::sleep_for(std::chrono::microseconds(now.delay_us));
        }
        launch->compute(cpu);
        std::this_thread::sleep_until(begun + least_time(now, launch->tokens()));
    });
    return GGML_STATUS_SUCCESS;
}

// The device.
const char* device_description(ggml_backend_dev_t) {
    return "a GPU that is none";
}
void get_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
    *total = static_cast<size_t>(current().memory);
    *free = static_cast<size_t>(std::max<int64_t>(current().memory - used_bytes, 0));
}
enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}
void get_props(ggml_backend_dev_t d, ggml_backend_dev_props* props) {
    *props = {};
    props->name = "PRETENDED0";
    props->description = device_description(d);
    get_memory(d, &props->memory_free, &props->memory_total);
    props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
    props->caps.async = true;
    props->caps.mmap_support = true;
}
ggml_backend_t init_backend(ggml_backend_dev_t d, const char*) {
    static ggml_guid guid = {'p', 'r', 'e', 't', 'e', 'n', 'd', 'e', 'd', 0, 1, 2, 3, 4, 5, 6};
    auto* backend = new ggml_backend{};
    backend->guid = &guid;
    backend->iface.get_name = backend_name;
    backend->iface.free = free_backend;
    backend->iface.get_tensor_async = get_tensor_async;
    backend->iface.synchronize = synchronize;
    backend->iface.graph_compute = graph_compute;
    backend->device = d;
    backend->context = new Backend;
    return backend;
}
bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
    const auto missing = current().missing_operators;
    if (std::find(missing.begin(), missing.end(), ggml_op_name(op->op)) != missing.end()) return false;
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}
void set_threads(ggml_backend_t backend, int threads) {
    medusa::set_threads(of(backend).cpu, threads);
}

ggml_backend_buffer_type buffer_type = [] {
    ggml_backend_buffer_type type{};
    type.iface.get_name = type_name;
    type.iface.alloc_buffer = alloc_buffer;
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 128; };
    type.iface.is_host = [](ggml_backend_buffer_type_t) { return false; };
    type.device = &device;
    return type;
}();

ggml_backend_device device = [] {
    ggml_backend_device d{};
    d.iface.get_name = [](ggml_backend_dev_t) { return "PRETENDED0"; };
    d.iface.get_description = device_description;
    d.iface.get_memory = get_memory;
    d.iface.get_type = get_type;
    d.iface.get_props = get_props;
    d.iface.init_backend = init_backend;
    d.iface.get_buffer_type = [](ggml_backend_dev_t) { return &buffer_type; };
    d.iface.supports_op = supports_op;
    d.iface.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == &buffer_type; };
    d.reg = &registry;
    return d;
}();

ggml_backend_reg registry = [] {
    ggml_backend_reg r{};
    r.api_version = ggml_backend_api_version;
    r.iface.get_name = [](ggml_backend_reg_t) { return "PRETENDED"; };
    r.iface.get_device_count = [](ggml_backend_reg_t) -> size_t { return 1; };
    r.iface.get_device = [](ggml_backend_reg_t, size_t) { return &device; };
    r.iface.get_proc_address = [](ggml_backend_reg_t, const char* name) -> void* {
        const bool wanted = std::string_view(name) == "ggml_backend_set_n_threads";
        return wanted ? reinterpret_cast<void*>(set_threads) : nullptr;
    };
    return r;
}();

}  // namespace

void pretend_device() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_backend_register(&registry); });
}

void set_behaviour(const DeviceBehaviour& wanted) {
    const std::lock_guard lock(behaviour_mutex);
    behaviour = wanted;
    allocations_left = wanted.failing_allocation;
    graphs_left = wanted.failing_graph;
    is_lost = false;
}

DeviceCounters take_counters() {
    return {graphs.exchange(0),  to_device_bytes.exchange(0), to_device.exchange(0), to_host_bytes.exchange(0),
            to_host.exchange(0), waits.exchange(0),           logits.exchange(0)};
}

std::vector<std::string> take_operators() {
    const std::lock_guard lock(operators_mutex);
    const std::set<std::string> taken = std::exchange(operators, {});
    return {taken.begin(), taken.end()};
}

}  // namespace medusa::testing
#else
#include "base/common.h"
#include "llama/backend.h"

namespace medusa::testing {

void pretend_device() {
    throw Error("no device can be pretended on this platform");
}
void set_behaviour(const DeviceBehaviour&) {}
DeviceCounters take_counters() {
    return {};
}
std::vector<std::string> take_operators() {
    return {};
}

}  // namespace medusa::testing
#endif
