//! Maps declared in objects.

use crate::clang::Clang;
use crate::entry;
use bpfof_function::map::SetMode;
use bpfof_function::object::Entry;
use bpfof_function::{
    Arena, Exit, Fault, FaultKind, Map, MapKind, NativeFunction, Object, OwnMaps, abi, interpret,
};

/// How a call ended, its answer, and the rest of the budget.
type Called = Result<(Exit, Vec<u8>, i64), Fault>;

/// One call with this argument on one of the engines.
fn call(entry: &Entry, maps: &mut OwnMaps, is_native: bool, argument: &[u8]) -> Called {
    let mut arena = Arena::new();
    arena.begin_chain(argument, abi::DEFAULT_SCRATCH_BYTES);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..512, 0, 0, 0);
    let mut budget = 100_000;
    let exit = if is_native {
        let native = NativeFunction::compile(&entry.program).expect("translates");
        native.call(&mut arena, limit, &mut budget, maps)
    } else {
        interpret(&entry.program, &mut arena, limit, &mut budget, maps)
    };
    let length = arena.context_u32(abi::context::OUT_LEN) as usize;
    exit.map(|exit| (exit, arena.scratch()[..length].to_vec(), budget))
}

/// Calls on both engines, each with maps of its own; results and maps must agree.
fn both(entry: &Entry, arguments: &[u64]) -> (Vec<Called>, OwnMaps) {
    let [(expected, oracle), (results, maps)] = [false, true].map(|is_native| {
        let mut maps = OwnMaps::new(&entry.program);
        let results = arguments
            .iter()
            .map(|argument| call(entry, &mut maps, is_native, &argument.to_le_bytes()));
        (results.collect::<Vec<_>>(), maps)
    });
    assert_eq!(expected, results);
    for (expected, map) in oracle.maps().iter().zip(maps.maps()) {
        assert_eq!(entries(expected), entries(map));
    }
    (results, maps)
}

fn entries(map: &Map) -> Vec<u8> {
    let mut entries = Vec::new();
    assert_eq!(map.page(0, usize::MAX, &mut entries), None);
    entries
}

#[test]
fn declarations_are_read_in_all_forms_that_clang_emits() {
    for clang in Clang::all() {
        let object = clang.compile("maps");
        let count = entry(&object, "count");
        let [seen, totals] = count.program.maps() else { panic!("{:?}", count.program.maps()) };
        assert_eq!((seen.name(), seen.kind()), ("seen", MapKind::Hash));
        assert_eq!((seen.key_bytes(), seen.value_bytes(), seen.max_entries()), (8, 16, 4));
        assert_eq!((totals.name(), totals.kind()), ("totals", MapKind::Array));
        assert_eq!((totals.key_bytes(), totals.value_bytes(), totals.max_entries()), (4, 24, 2));
        let names = |name| {
            let entry = entry(&object, name);
            let mut names: Vec<String> =
                entry.program.maps().iter().map(|map| map.name().to_owned()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names("each"), ["other", "totals"]);
        assert_eq!(names("forged"), [""; 0]);
    }
}

#[test]
fn functions_count() {
    for clang in Clang::all() {
        let count = entry(&clang.compile("maps"), "count");
        let (results, maps) = both(&count, &[7, 8, 7, 1, 2, 3, 7]);
        let answers: Vec<u64> = results
            .iter()
            .map(|result| match result {
                Ok((Exit::Return(0), answer, _)) => {
                    u64::from_le_bytes(answer[..].try_into().expect("a number"))
                }
                Ok((Exit::Return(code), ..)) => 1000 + code,
                other => panic!("{other:?}"),
            })
            .collect();
        // The fifth key does not fit.
        assert_eq!(answers, [1, 1, 2, 1, 1, 1028, 3]);
        let value = maps.maps()[0].get(&7u64.to_le_bytes()).expect("it is there").to_vec();
        assert_eq!(value, [3u64.to_le_bytes(), (3 * 512u64).to_le_bytes()].concat());
        let total = maps.maps()[1].get(&1u32.to_le_bytes()).expect("it is there").to_vec();
        assert_eq!(total, [0, 0, 6u64].map(u64::to_le_bytes).concat());
    }
}

#[test]
fn map_helpers_return_error_codes() {
    let each = entry(&Clang::default().compile("maps"), "each");
    let (results, _) = both(&each, &[0]);
    let [Ok((Exit::Return(0), answer, _))] = &results[..] else { panic!("{results:?}") };
    let (numbers, _) = answer.as_chunks::<8>();
    let numbers: Vec<i64> = numbers.iter().map(|number| i64::from_le_bytes(*number)).collect();
    let (noent, exist, nospace, invalid) = (-2, -17, -28, -22);
    let expected = [
        noent, 0, exist, 0, 5, -1, invalid, noent, nospace, noent, 0, invalid, noent, nospace,
        invalid,
    ];
    assert_eq!(numbers, expected);
}

#[test]
fn invalid_map_handles_fault() {
    let object = Clang::default().compile("maps");
    let forged = entry(&object, "forged");
    let handles = [0, 1, abi::MAPS - 1, abi::MAPS, abi::SCRATCH, u64::MAX];
    for (result, handle) in both(&forged, &handles).0.into_iter().zip(handles) {
        let fault = result.expect_err("the function has no maps");
        assert_eq!(fault.kind, FaultKind::NoMap { handle });
        let explained = fault.explain(&forged.program);
        assert!(explained.contains("is not a map of this function; pass &map"), "{explained}");
    }
    // In a program with maps, only their handles are valid.
    let count = entry(&object, "count");
    let program = count.program.clone();
    let mut maps = OwnMaps::new(&program);
    for (handle, good) in [(abi::MAPS, true), (abi::MAPS + 1, true), (abi::MAPS + 2, false)] {
        let outcome = call(&forged, &mut maps, true, &handle.to_le_bytes());
        assert_eq!(outcome.is_ok(), good, "{handle:#x}");
    }
    let outside = entry(&object, "outside");
    let (results, _) = both(&outside, &[0]);
    let fault = results[0].clone().expect_err("16 bytes do not fit into 15");
    assert_eq!(fault.kind, FaultKind::Memory { address: abi::DATA + 512 - 15 });
}

#[test]
fn calls_pay_for_what_they_do() {
    let object = Clang::default().compile("maps");
    let count = entry(&object, "count");
    let (results, maps) = both(&count, &[7]);
    let Ok((_, _, left)) = &results[0] else { panic!("{results:?}") };
    // Two on `seen` (key 8, value 16), one on `totals` (key 4, value 24).
    let helpers = 3 * 25 + 2 * (1300 + 32 + 8) + 1300 + 16 + 12;
    assert_eq!(100_000 - left, count.program.call_cost(0) + helpers);
    drop(maps);
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..512, 0, 0, 0);
    let mut maps = OwnMaps::new(&count.program);
    let mut budget = count.program.call_cost(0) + 25 + 1039;
    let native = NativeFunction::compile(&count.program).expect("translates");
    let fault = native.call(&mut arena, limit, &mut budget, &mut maps).expect_err("too little");
    assert_eq!(fault.kind, FaultKind::Budget);
    assert!(entries(&maps.maps()[0]).is_empty(), "a call without budget changes nothing");
}

/// Refused declarations, and their messages.
#[test]
fn refusals_name_the_map() {
    let refusal = |declaration: &str| {
        let source = format!(
            "#include <bpfof.h>\n{declaration}\n\
             SEC(\"bpfof/f\") int f(struct bpfof_ctx *c)\n\
             {{ __u64 k = 0; return bpfof_map_add(&m, c->scratch, k, 1); }}\n"
        );
        let object = Clang::default().compile_text(&source);
        Object::parse(&object).expect_err("refused").to_string()
    };
    let map = |members: &str| refusal(&format!("struct {{ {members} }} m SEC(\".maps\");"));
    let (hash, entries) = ("__uint(type, BPF_MAP_TYPE_HASH);", "__uint(max_entries, 8);");
    let (key, value) = ("__type(key, __u64);", "__type(value, __u64);");
    let all = [hash, entries, key, value];
    let missing = |left_out: usize| {
        let kept = all.iter().enumerate().filter(|(index, _)| *index != left_out);
        map(&kept.map(|(_, member)| *member).collect::<String>())
    };
    assert_eq!(missing(0), "map m: it does not declare its type: __uint(type, …)");
    assert_eq!(missing(1), "map m: it does not declare its size: __uint(max_entries, …)");
    assert_eq!(missing(2), "map m: it does not declare its key: __type(key, …)");
    assert_eq!(missing(3), "map m: it does not declare its value: __type(value, …)");
    let all = all.concat();
    let more = map(&format!("{all} __uint(pinning, 1);"));
    assert_eq!(more, "map m: member pinning is not supported");
    let again = map(&format!("{all} __uint(key_size, 8);"));
    assert_eq!(again, "map m: member key_size repeats what another member declares");
    let kind = map(&format!("__uint(type, 9); {entries} {key} {value}"));
    assert!(kind.starts_with("map m: type 9 is not supported"), "{kind}");
    let plain = map(&format!("{hash} {entries} {key} int value;"));
    assert_eq!(plain, "map m: member value is neither __uint nor __type");
    let large = map(&format!("{hash} __uint(max_entries, 1 << 20); {key} {value}"));
    assert!(large.starts_with("map m: it takes 25165824 bytes; the limit is 16777216"), "{large}");
    let array = map(&format!("__uint(type, BPF_MAP_TYPE_ARRAY); {entries} {key} {value}"));
    assert_eq!(array, "map m: its keys have 8 bytes; keys of an array are a __u32");
    let number = refusal("int m SEC(\".maps\");");
    assert!(number.starts_with("map m: its type is not a structure"), "{number}");
    let many: String =
        (0..33).map(|i| format!("struct {{ {all} }} m{i} SEC(\".maps\");")).collect();
    let many = refusal(&format!("{many}\n#define m m0"));
    assert!(many.contains("declares more than 32 maps"), "{many}");
    let old = refusal("struct { int type; } m SEC(\"maps\");");
    assert!(old.contains("maps are declared in SEC(\".maps\")"), "{old}");
}

#[test]
fn maps_without_btf_are_refused() {
    let mut object = Clang::default().compile("maps");
    // The section is found by its name, which is the end of the name of its relocations: damages
    // that.
    let name = object.windows(9).position(|bytes| bytes == b".rel.BTF\0").expect("it has BTF");
    object[name + 4] = b'!';
    let refused = Object::parse(&object).expect_err("refused").to_string();
    assert!(refused.contains("has no BTF that describes it; compile with -g"), "{refused}");
}

#[test]
fn functions_see_entries_that_the_host_sets() {
    // Keys that the host sets and a function finds.
    let count = entry(&Clang::default().compile("maps"), "count");
    let mut maps = OwnMaps::new(&count.program);
    let value = [41u64.to_le_bytes(), 0u64.to_le_bytes()].concat();
    maps.maps()[0].set(&9u64.to_le_bytes(), &value, SetMode::New).expect("there is room");
    let (_, answer, _) = call(&count, &mut maps, true, &9u64.to_le_bytes()).expect("no fault");
    assert_eq!(answer, 42u64.to_le_bytes());
}
