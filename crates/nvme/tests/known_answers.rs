//! Layouts as the specifications give them, byte by byte.

use bpfof_nvme::fabrics::{ConnectData, FabricsCommand};
use bpfof_nvme::identify::{
    IdentifyController, IdentifyNamespace, IndependentNamespace, LbaFormat, NvmController,
};
use bpfof_nvme::log_page::{
    AnaGroup, AnaHeader, DiscoveryEntry, DiscoveryHeader, ErrorLogEntry, SmartLog,
};
use bpfof_nvme::tcp::{C2hData, CapsuleCmd, CapsuleResp, Digests, H2cData, IcReq, IcResp, R2t};
use bpfof_nvme::tcp::{Fes, PduError, Sender, TermReq, crc32c};
use bpfof_nvme::vendor_specific::{
    DEFAULT_SCRATCH_BYTES, FileVersion, FirstRead, FirstReads, FunctionDigest, FunctionReportEntry,
    Malformed, MapAddress, MapChange, MapCommand, MapReportEntry, PushdownLimits, PushdownParts,
    PushdownRequest, PushdownShort, PushdownVectorParts, PushdownVectorRequest, VectorAnswer,
    VectorArguments, VectorChain, VectorRecord,
};
use bpfof_nvme::{
    AdminCommand, Cqe, DsmRange, Installation, NvmCommand, ReportContent, Rw, Sqe, Status, Upload,
};

const NONE: Digests = Digests { header: false, data: false };

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn crc32c_check_value() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
}

#[test]
fn identify_controller_offsets() {
    let bytes = IdentifyController {
        vid: 0x1234,
        serial: "SN".into(),
        model: "MODEL".into(),
        firmware: "1.0".into(),
        cmic: 2,
        mdts: 5,
        cntlid: 0x0102,
        ver: 0x0002_0000,
        oaes: 0x100,
        ctratt: 1,
        cntrltype: 1,
        oacs: 3,
        acl: 4,
        aerl: 5,
        frmw: 6,
        lpa: 7,
        kas_100ms: 10,
        sqes: 0x66,
        cqes: 0x44,
        maxcmd: 128,
        nn: 9,
        oncs: 0x0D,
        vwc: 7,
        awun: 11,
        awupf: 12,
        sgls: 0x10_0001,
        subnqn: "nqn.x".into(),
        ioccsz_16b: 4,
        iorcsz_16b: 1,
        fcatt: 1,
        msdbd: 1,
        ofcs: 1,
        ..IdentifyController::default()
    }
    .to_bytes();
    assert_eq!(bytes[0..2], [0x34, 0x12]);
    assert_eq!(&bytes[4..24], b"SN                  ");
    assert_eq!(&bytes[24..30], b"MODEL ");
    assert_eq!(&bytes[64..72], b"1.0     ");
    assert_eq!((bytes[76], bytes[77], bytes[78], bytes[79]), (2, 5, 2, 1));
    assert_eq!((word(&bytes, 80), word(&bytes, 92), word(&bytes, 96)), (0x2_0000, 0x100, 1));
    assert_eq!((bytes[111], bytes[256], bytes[258], bytes[259]), (1, 3, 4, 5));
    assert_eq!((bytes[260], bytes[261], bytes[320]), (6, 7, 10));
    assert_eq!((bytes[512], bytes[513], bytes[514], bytes[516]), (0x66, 0x44, 128, 9));
    assert_eq!((bytes[520], bytes[525], bytes[526], bytes[528]), (0x0D, 7, 11, 12));
    assert_eq!(word(&bytes, 536), 0x10_0001);
    assert_eq!(&bytes[768..774], b"nqn.x\0");
    assert_eq!((bytes[1792], bytes[1796], bytes[1802], bytes[1803], bytes[1804]), (4, 1, 1, 1, 1));
    let read = IdentifyController::from_bytes(&bytes);
    assert_eq!((read.serial.to_string(), read.subnqn.to_string()), ("SN".into(), "nqn.x".into()));
    assert_eq!(read.max_transfer_bytes(0), Some(131_072));
    assert_eq!(read.in_capsule_bytes(), 0);
}

#[test]
fn identify_namespace_offsets() {
    let mut namespace = IdentifyNamespace {
        nsze: 1,
        ncap: 2,
        nuse: 3,
        nsfeat: 4,
        flbas: 1,
        nmic: 1,
        dlfeat: 9,
        anagrpid: 6,
        nguid: [7; 16],
        eui64: [8; 8],
        ..IdentifyNamespace::default()
    };
    namespace.lbaf[1] = LbaFormat { metadata_bytes: 8, lbads: 12, performance: 1 };
    let bytes = namespace.to_bytes();
    assert_eq!((bytes[0], bytes[8], bytes[16], bytes[24], bytes[26]), (1, 2, 3, 4, 1));
    assert_eq!((bytes[30], bytes[33], bytes[92], bytes[104], bytes[120]), (1, 9, 6, 7, 8));
    assert_eq!(bytes[132..136], [8, 0, 12, 1]);
    assert_eq!(namespace.format().block_bytes(), Some(4096));
    assert_eq!(LbaFormat::default().block_bytes(), None);
    let independent =
        IndependentNamespace { nsfeat: 1, nmic: 2, rescap: 3, anagrpid: 4, nsattr: 5, nstat: 6 };
    let bytes = independent.to_bytes();
    assert_eq!(bytes[..16], [1, 2, 3, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 6, 0]);
    assert_eq!(NvmController { vsl: 5 }.to_bytes()[..2], [5, 0]);
}

#[test]
fn log_page_offsets() {
    let entry = DiscoveryEntry {
        trtype: 3,
        adrfam: 1,
        subtype: 2,
        treq: 6,
        portid: 1,
        cntlid: 0xFFFF,
        asqsz: 32,
        trsvcid: "4420".into(),
        subnqn: "nqn.y".into(),
        traddr: "127.0.0.1".into(),
        ..DiscoveryEntry::default()
    }
    .to_bytes();
    assert_eq!(entry[..12], [3, 1, 2, 6, 1, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
    assert_eq!((&entry[32..37], &entry[256..262]), (&b"4420 "[..], &b"nqn.y\0"[..]));
    assert_eq!(&entry[512..522], b"127.0.0.1 ");
    let header = DiscoveryHeader { generation: 5, records: 2, recfmt: 0 }.to_bytes();
    assert_eq!((header[0], header[8]), (5, 2));
    let smart = SmartLog { temperature_kelvin: 300, host_reads: 1, ..SmartLog::default() };
    assert_eq!((smart.to_bytes()[1..3].to_vec(), smart.to_bytes()[64]), (vec![44, 1], 1));
    let error = ErrorLogEntry { error_count: 1, lba: 2, nsid: 3, ..ErrorLogEntry::default() };
    assert_eq!((error.to_bytes()[16], error.to_bytes()[24]), (2, 3));
    let access = AnaHeader { change_count: 3, groups: 0x102 }.to_bytes();
    assert_eq!(access, [3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    let group = AnaGroup { group: 5, namespaces: 6, change_count: 7, state: AnaGroup::OPTIMIZED };
    assert_eq!(group.to_bytes()[..17], [5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(group.to_bytes()[17..], [0; 15]);
}

#[test]
fn commands_as_linux_sends_them() {
    // Connect of the admin queue: 32 entries, 5 s keep alive.
    let connect =
        FabricsCommand::Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato_ms: 5000 };
    let bytes = Sqe { cid: 0x1000, ..connect.to_sqe() }.to_bytes();
    assert_eq!(bytes[..8], [0x7F, 0x40, 0x00, 0x10, 0x01, 0, 0, 0]);
    assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x01]);
    assert_eq!((word(&bytes, 40), word(&bytes, 44), word(&bytes, 48)), (0, 0x1F, 5000));
    let sqe = Sqe::from_bytes(&bytes);
    assert_eq!(AdminCommand::parse(&sqe), Ok(AdminCommand::Fabrics(connect)));
    // An I/O queue without flow control.
    let lane = FabricsCommand::Connect { recfmt: 0, qid: 1, sqsize: 127, cattr: 4, kato_ms: 0 };
    assert_eq!((lane.to_sqe().cdw10, lane.to_sqe().cdw11), (0x1_0000, 0x4_007F));
    assert_eq!(NvmCommand::parse(&lane.to_sqe()), Ok(NvmCommand::Fabrics(lane)));
    let cc = FabricsCommand::PropertySet { offset: 0x14, size8: false, value: 0x46_0001 };
    assert_eq!((cc.to_sqe().cdw11, cc.to_sqe().cdw12), (0x14, 0x46_0001));

    let read = Rw { slba: 0x1_0000_0002, blocks: 8, fua: true };
    let sqe = read.to_sqe(2, 1);
    assert_eq!((sqe.cdw10, sqe.cdw11, sqe.cdw12), (2, 1, 0x4000_0007));
    assert_eq!(NvmCommand::parse(&sqe), Ok(NvmCommand::Read(read)));

    let log = AdminCommand::get_log_page(0x70, 0, 1 << 33, 4096);
    assert_eq!((log.cdw10, log.cdw12, log.cdw13), (0x03FF_0070, 0, 2));
    let AdminCommand::GetLogPage { length_bytes, offset_bytes, .. } =
        AdminCommand::parse(&log).unwrap()
    else {
        panic!("not Get Log Page");
    };
    assert_eq!((length_bytes, offset_bytes), (4096, 1 << 33));
    let range = DsmRange { attributes: 1, blocks: 2, slba: 3 };
    assert_eq!(DsmRange::list(&range.to_bytes(), 4).collect::<Vec<_>>(), [range]);
}

#[test]
fn completion_layout() {
    let cqe = Cqe { dw0: 1, dw1: 2, sqhd: 3, sqid: 4, cid: 5, status: Status::STALE_FILE_MAP };
    let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 4, 0, 5, 0, 0x06, 0x8E];
    assert_eq!(cqe.to_bytes(), bytes);
    assert_eq!(Cqe::from_bytes(&bytes), cqe);
}

#[test]
fn pdu_layouts() {
    let mut out = Vec::new();
    let digests = Digests { header: true, data: true };
    IcReq { pfv: 0, hpda: 1, digests, maxr2t: 2 }.encode_into(&mut out);
    assert_eq!(
        (out.len(), &out[..16]),
        (128, &[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 1, 3, 2, 0, 0, 0][..])
    );
    out.clear();
    IcResp { pfv: 0, cpda: 0, digests: NONE, maxh2cdata_bytes: 0x2_0000 }.encode_into(&mut out);
    assert_eq!(out[..16], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    out.clear();
    CapsuleCmd { sqe: Sqe::new(2, 1), data: &[] }.encode_into(&mut out, NONE, 0);
    assert_eq!((out.len(), &out[..10]), (72, &[4, 0, 72, 0, 72, 0, 0, 0, 2, 0x40][..]));
    out.clear();
    CapsuleCmd { sqe: Sqe::new(1, 1), data: b"data" }.encode_into(&mut out, digests, 0);
    assert_eq!((out.len(), &out[..8]), (84, &[4, 3, 72, 76, 84, 0, 0, 0][..]));
    assert_eq!(out[72..76], crc32c(&out[..72]).to_le_bytes());
    assert_eq!(out[80..84], crc32c(b"data").to_le_bytes());
    out.clear();
    let cqe = Cqe { cid: 7, ..Cqe::default() };
    CapsuleResp { cqe }.encode_into(&mut out, digests);
    assert_eq!((out.len(), &out[..8], out[20]), (28, &[5, 1, 24, 0, 28, 0, 0, 0][..], 7));
    out.clear();
    let c2h = C2hData {
        cccid: 7,
        data_offset_bytes: 1,
        data_length_bytes: 512,
        last: true,
        success: true,
    };
    c2h.encode_header_into(&mut out, NONE, 0);
    let expected = [7, 0x0C, 24, 24, 24, 2, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0];
    assert_eq!(out, expected);
    out.clear();
    c2h.encode_header_into(&mut out, digests, 31);
    assert_eq!((out.len(), &out[..8]), (128, &[7, 0x0F, 24, 128, 132, 2, 0, 0][..]));
    out.clear();
    let h2c =
        H2cData { cccid: 1, ttag: 2, data_offset_bytes: 3, data_length_bytes: 4, last: false };
    h2c.encode_header_into(&mut out, NONE, 0);
    assert_eq!(out[..20], [6, 0, 24, 24, 28, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    out.clear();
    R2t { cccid: 1, ttag: 2, offset_bytes: 3, length_bytes: 4 }.encode_into(&mut out, NONE);
    assert_eq!(out[..20], [9, 0, 24, 0, 24, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    let (error, pdu) = (PduError::invalid_field(4, "test"), out.clone());
    out.clear();
    TermReq::for_error(&error, Sender::Controller, &pdu).encode_into(&mut out);
    assert_eq!(out[..14], [3, 0, 24, 0, 48, 0, 0, 0, 1, 0, 4, 0, 0, 0]);
    assert_eq!((Fes::from_code(1), &out[24..]), (Fes::InvalidHeaderField, &pdu[..24]));
}

#[test]
fn connect_data_layout() {
    let data =
        ConnectData { hostid: [1; 16], cntlid: 0xFFFF, subnqn: "s".into(), hostnqn: "h".into() };
    let bytes = data.to_bytes();
    assert_eq!((bytes[15], bytes[16], bytes[17], bytes[18]), (1, 0xFF, 0xFF, 0));
    assert_eq!((bytes[256], bytes[257], bytes[512], bytes[513]), (b's', 0, b'h', 0));
}

#[test]
fn pushdown_request_layout_and_rules() {
    let files = [FileVersion { id: 1, version: 2 }, FileVersion { id: 3, version: 4 }];
    let parts = PushdownParts {
        function: 9,
        files: &files,
        first_file: 1,
        first_offset_bytes: 0x200,
        first_size_bytes: 512,
        scratch: b"argument",
        answer_max_bytes: 64,
        scratch_size_bytes: 0x3020,
    };
    let mut bytes = Vec::new();
    parts.encode_into(&mut bytes);
    assert_eq!(bytes.len(), 72);
    assert_eq!(
        bytes[..24],
        [9, 0, 0, 0, 2, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 8, 0, 0, 0]
    );
    assert_eq!(bytes[24..40], [64, 0, 0, 0, 0x20, 0x30, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let request = PushdownRequest::parse(&bytes, 2).unwrap();
    assert_eq!(request.files().collect::<Vec<_>>(), files);
    assert_eq!((request.file(1), request.file(2)), (Some(files[1]), None));
    assert_eq!(request.scratch(), b"argument");
    assert_eq!(request.header().effective_scratch_bytes(), 0x3020);
    let mut default = bytes.clone();
    default[28..32].fill(0);
    let request = PushdownRequest::parse(&default, 2).unwrap();
    assert_eq!((request.header().effective_scratch_bytes(), DEFAULT_SCRATCH_BYTES), (4096, 4096));

    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        PushdownRequest::parse(&bytes, 2).unwrap_err()
    };
    assert_eq!(refused(&|b| b[4] = 0), Malformed { at: 4 });
    assert_eq!(refused(&|b| b[4] = 3), Malformed { at: 4 });
    assert_eq!(refused(&|b| b[6] = 2), Malformed { at: 6 });
    // Scratch must hold the prefix of 8 bytes.
    assert_eq!(refused(&|b| b[28..30].copy_from_slice(&[7, 0])), Malformed { at: 28 });
    let mut exact = bytes.clone();
    exact[28..30].copy_from_slice(&[8, 0]);
    assert!(PushdownRequest::parse(&exact, 2).is_ok());
    let long = PushdownParts { scratch: &[0; 4097], scratch_size_bytes: 0, ..parts };
    let mut encoded = Vec::new();
    long.encode_into(&mut encoded);
    assert_eq!(PushdownRequest::parse(&encoded, 2), Err(Malformed { at: 28 }));
    assert_eq!(refused(&|b| b[52] = 1), Malformed { at: 52 });
    assert_eq!(refused(&|b| b.push(0)), Malformed { at: 20 });
    assert_eq!(refused(&|b| b.truncate(40)), Malformed { at: 40 });
    assert_eq!(refused(&|b| b.truncate(31)), Malformed { at: 31 });
}

fn vector_parts<'a>(
    files: &'a [FileVersion],
    first: FirstReads<'a>,
    arguments: VectorArguments<'a>,
) -> PushdownVectorParts<'a> {
    PushdownVectorParts {
        function: 9,
        files,
        first,
        arguments,
        scratch_size_bytes: 0x3020,
        answer_max_bytes: 64,
        room_bytes: 0x130,
    }
}

#[test]
fn pushdown_vector_layout() {
    let files = [FileVersion { id: 1, version: 2 }, FileVersion { id: 3, version: 4 }];
    let first = FirstRead { file: 1, offset_bytes: 0x200, size_bytes: 512 };
    let arguments = VectorArguments::Equal { count: 3, bytes: b"firstotherthird" };
    let parts = vector_parts(&files, FirstReads::Same(first), arguments);
    let mut bytes = Vec::new();
    parts.encode_into(&mut bytes);
    assert_eq!((bytes.len(), parts.encoded_bytes()), (95, 95));
    #[rustfmt::skip]
    assert_eq!(
        bytes[..48],
        [
            9, 0, 0, 0, 2, 0, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, // function, counts, offset
            0, 2, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0x20, 0x30, 0, 0, // size, file, tables, argument, scratch
            64, 0, 0, 0, 0x30, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // answers
        ]
    );
    assert_eq!(
        bytes[48..80],
        [
            [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
        ]
        .concat()
    );
    let request = PushdownVectorRequest::parse(&bytes, 2, 3).unwrap();
    assert_eq!(request.files().collect::<Vec<_>>(), files);
    let mut chains = request.chains();
    for argument in [b"first", b"other", b"third"] {
        assert_eq!(chains.next(&bytes), Some(VectorChain { first, argument }));
    }
    assert_eq!((chains.next(&bytes), chains.left()), (None, 0));

    // Both tables.
    let other = FirstRead { file: 0, offset_bytes: 7, size_bytes: 8 };
    let (reads, sizes) = ([first, other], [3, 0]);
    let arguments = VectorArguments::Sized { sizes: &sizes, bytes: b"abc" };
    let parts = vector_parts(&files, FirstReads::Each(&reads), arguments);
    let mut bytes = Vec::new();
    parts.encode_into(&mut bytes);
    assert_eq!((bytes[6], bytes[22], bytes.len()), (2, 3, 80 + 32 + 4 + 3));
    assert!(bytes[8..22].iter().chain(&bytes[24..28]).all(|byte| *byte == 0));
    assert_eq!(bytes[80..96], [0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes[112..], [3, 0, 0, 0, b'a', b'b', b'c']);
    let mut chains = PushdownVectorRequest::parse(&bytes, 2, 3).unwrap().chains();
    assert_eq!(chains.next(&bytes), Some(VectorChain { first, argument: b"abc" }));
    assert_eq!(chains.next(&bytes), Some(VectorChain { first: other, argument: b"" }));

    let sqe = Sqe::new(0x87, 1);
    assert_eq!(NvmCommand::parse(&sqe), Ok(NvmCommand::PushdownVector));
    for field in [2, 3, 10, 11, 12, 13, 14, 15] {
        let mut bytes = sqe.to_bytes();
        bytes[4 * field] = 1;
        let refused = NvmCommand::parse(&Sqe::from_bytes(&bytes));
        assert_eq!(refused, Err(Status::INVALID_FIELD.with_dnr()), "CDW{field}");
    }
}

#[test]
fn pushdown_vector_rules() {
    let files = [FileVersion { id: 1, version: 2 }];
    let first = FirstRead { file: 0, offset_bytes: 0x200, size_bytes: 512 };
    let encode = |first, arguments| {
        let mut bytes = Vec::new();
        vector_parts(&files, first, arguments).encode_into(&mut bytes);
        assert!(PushdownVectorRequest::parse(&bytes, 1, 2).is_ok());
        bytes
    };
    let (reads, sizes) = ([first, first], [3, 1]);
    let fixed = VectorArguments::Equal { count: 2, bytes: b"abcd" };
    let plain = encode(FirstReads::Same(first), fixed);
    let tables =
        encode(FirstReads::Each(&reads), VectorArguments::Sized { sizes: &sizes, bytes: b"abcd" });
    let refused = |bytes: &[u8], change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        PushdownVectorRequest::parse(&bytes, 1, 2).unwrap_err().at
    };
    // In `tables` first reads begin at 64, sizes at 96.
    let sets: [(&[u8], usize, u8, u32); 17] = [
        (&plain, 4, 0, 4),
        (&plain, 4, 2, 4),
        (&plain, 6, 0, 6),
        (&plain, 6, 3, 6),
        (&plain, 17, 0, 16),
        (&plain, 20, 1, 20),
        (&plain, 22, 4, 22),
        (&plain, 24, 3, 24),
        (&plain, 24, 1, 24),
        (&plain, 47, 1, 40),
        (&plain, 52, 1, 52),
        (&tables, 8, 1, 8),
        (&tables, 16, 1, 16),
        (&tables, 20, 1, 20),
        (&tables, 24, 1, 24),
        (&tables, 64 + 9, 0, 64 + 8),
        (&tables, 64 + 16 + 12, 1, 64 + 16 + 12),
    ];
    for (bytes, at, value, blamed) in sets {
        assert_eq!(refused(bytes, &|b| b[at] = value), blamed, "byte {at}");
    }
    assert_eq!(refused(&plain, &|b| b[36..40].copy_from_slice(&[31, 0, 0, 0])), 36);
    assert_eq!(refused(&tables, &|b| b[64 + 16 + 14] = 1), 64 + 16 + 14);
    // Wrong sizes: beyond the arguments, beyond scratch, less than the arguments have.
    assert_eq!(refused(&tables, &|b| b[98] = 2), 98);
    assert_eq!(refused(&tables, &|b| b[96] = 5), 96);
    assert_eq!(refused(&tables, &|b| b[28..32].copy_from_slice(&[2, 0, 0, 0])), 96);
    assert_eq!(refused(&tables, &|b| b[98] = 0), 96);
    assert_eq!(refused(&plain, &|b| b[28..32].copy_from_slice(&[1, 0, 0, 0])), 24);
    assert_eq!(refused(&plain, &|b| b.push(0)), 24);
    assert_eq!(refused(&plain, &|b| b.truncate(50)), 50);
    assert_eq!(refused(&tables, &|b| b.truncate(97)), 97);
    assert_eq!(refused(&plain, &|b| b.truncate(47)), 47);
}

#[test]
fn vector_answer_layout() {
    let ok = VectorRecord { dw0: 7, dw1: 3, answer_at: 32, ..VectorRecord::default() };
    let stale =
        VectorRecord { status: Status::STALE_FILE_MAP, dw0: 1, dw1: 2, ..VectorRecord::default() };
    assert_eq!(ok.to_bytes(), [0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 32, 0, 0, 0]);
    assert_eq!(stale.to_bytes(), [3, 0x47, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Status::VECTOR_FULL.field(), 0x0713);
    let bytes = [&ok.to_bytes()[..], &stale.to_bytes(), b"abc"].concat();
    let answer = VectorAnswer::parse(&bytes, 2).unwrap();
    let chains: Vec<_> = answer.chains().collect();
    assert_eq!(chains, [(ok, &b"abc"[..]), (stale, &b""[..])]);
    assert_eq!(VectorAnswer::room_bytes(2, 3), 38);
    assert_eq!(VectorAnswer::parse(&bytes, 3), Err(Malformed { at: 35 }));
    for answer_at in [31_u8, 33, 0xFF] {
        let mut bytes = bytes.clone();
        bytes[12] = answer_at;
        assert_eq!(VectorAnswer::parse(&bytes, 2), Err(Malformed { at: 12 }));
    }
}

#[test]
fn vendor_layouts() {
    let short = PushdownShort {
        function: 1,
        file: 2,
        first_blocks: 3,
        argument: std::array::from_fn(|i| i as u8),
    };
    let sqe = short.to_sqe(4, 64);
    assert_eq!((sqe.opcode, sqe.nsid, sqe.cdw2, sqe.cdw3), (0x82, 4, 1, 0x3_0002));
    assert_eq!((sqe.cdw10, sqe.cdw15, sqe.sgl.length_bytes), (0x0302_0100, 0x1716_1514, 64));
    assert_eq!(NvmCommand::parse(&sqe), Ok(NvmCommand::PushdownShort(short)));
    let nothing = PushdownShort { first_blocks: 0, ..short }.to_sqe(4, 64);
    assert_eq!(NvmCommand::parse(&nothing), Err(Status::MALFORMED_REQUEST));

    let limits = PushdownLimits {
        protocol_version: 1,
        files: 2,
        chain_bytes: 3,
        chain_instructions: 4,
        call_instructions: 5,
        function_types: 6,
        map_bytes: 7,
        vector_chains: 8,
        vector_bytes: 9,
        ..PushdownLimits::default()
    }
    .to_bytes();
    assert_eq!((limits[0], limits[2], limits[32], limits[40]), (1, 2, 3, 4));
    assert_eq!((limits[52], limits[56], limits[60]), (5, 6, 7));
    assert_eq!((limits[64], limits[68], limits.len()), (8, 9, 128));
    let digest = FunctionDigest { function: 0x102, digest: [7; 32] }.to_bytes();
    assert_eq!((&digest[..4], &digest[4..]), (&[2, 1, 0, 0][..], &[7; 32][..]));
    let entry = FunctionReportEntry { compile_us: 7, name: "get".into(), ..Default::default() };
    assert_eq!((entry.to_bytes()[56], &entry.to_bytes()[64..68]), (7, &b"get\0"[..]));

    let upload = Upload { total_bytes: 10, offset_bytes: 5 };
    let load =
        AdminCommand::function_load(upload, Installation { entry: 2, kept: true, named: true });
    assert_eq!((load.opcode, load.cdw10, load.cdw11), (0xC1, 10, 5));
    assert_eq!((load.cdw12, load.cdw13), (3, 2));
    assert_eq!(
        AdminCommand::parse(&load),
        Ok(AdminCommand::FunctionLoad(upload, Installation { entry: 2, kept: true, named: true }))
    );
    let fault = AdminCommand::last_fault(3, 2);
    assert_eq!((fault.opcode, fault.cdw10, fault.cdw11, fault.cdw12), (0xC6, 3, 2, 1));
    let report = |content, controller| {
        let (function, length_bytes) = (3, 2);
        Ok(AdminCommand::FunctionReport { function, length_bytes, content, controller })
    };
    assert_eq!(AdminCommand::parse(&fault), report(ReportContent::LastFault, 0));
    let trace = AdminCommand::trace(3, 2);
    assert_eq!((trace.opcode, trace.cdw10, trace.cdw11, trace.cdw12), (0xC6, 3, 2, 2));
    assert_eq!(AdminCommand::parse(&trace), report(ReportContent::Trace, 0));
    let of_another = AdminCommand::report_of(0x102, trace);
    assert_eq!((of_another.cdw12, of_another.cdw13), (2, 0x102));
    assert_eq!(AdminCommand::parse(&of_another), report(ReportContent::Trace, 0x102));
    let associations = AdminCommand::associations(2);
    assert_eq!((associations.cdw10, associations.cdw11, associations.cdw12), (0, 2, 3));
    let digests = AdminCommand::digests(2);
    assert_eq!((digests.cdw10, digests.cdw11, digests.cdw12), (0, 2, 4));
    assert!(AdminCommand::parse(&Sqe { cdw12: 5, ..trace }).is_err());
    assert!(AdminCommand::parse(&Sqe { cdw13: 0x1_0000, ..trace }).is_err());
    function_map_layouts();
}

#[test]
fn vendor_commands_use_no_other_dwords() {
    let upload = Upload { total_bytes: 10, offset_bytes: 5 };
    let load =
        AdminCommand::function_load(upload, Installation { entry: 2, kept: true, named: true });
    let map = MapAddress { controller: 0x102, map: 3 };
    let map_read = MapCommand::Read { map, length_bytes: 2, first_slot: 4 };
    for (sqe, allowed) in [
        (MapCommand::Report { controller: 1, length_bytes: 2 }.to_sqe(), [11, 12].as_slice()),
        (MapCommand::Get { map, length_bytes: 2 }.to_sqe(), &[10, 11, 12]),
        (map_read.to_sqe(), &[10, 11, 12, 13]),
        (MapCommand::Change { map, change: MapChange::Delete }.to_sqe(), &[10, 12]),
        (load, &[10, 11, 13]),
        (AdminCommand::file_map_set(upload), &[10, 11]),
        (AdminCommand::function_unload(1), &[10]),
        (AdminCommand::function_report(1, 2), &[10, 11, 13]),
        (AdminCommand::pushdown_identify(64), &[11]),
        (Sqe::new(0x83, 1), &[]),
    ] {
        for dword in [2, 3, 10, 11, 12, 13, 14, 15] {
            let mut bytes = sqe.to_bytes();
            let at = if dword < 10 { dword * 4 } else { 40 + (dword - 10) * 4 };
            bytes[at] = 0xFF;
            let sqe = Sqe::from_bytes(&bytes);
            let ok = if sqe.opcode == 0x83 {
                NvmCommand::parse(&sqe).is_ok()
            } else {
                AdminCommand::parse(&sqe).is_ok()
            };
            assert_eq!(ok, allowed.contains(&dword), "opcode {:x} dword {dword}", sqe.opcode);
        }
    }
}

/// protocol.md, "Function maps".
fn function_map_layouts() {
    let entry = MapReportEntry {
        map: 1,
        controller: 0x203,
        kind: 4,
        key_bytes: 5,
        value_bytes: 6,
        max_entries: 7,
        entries: 8,
        memory_bytes: 9,
        name: "seen".into(),
    };
    let bytes = entry.to_bytes();
    assert_eq!(bytes[..16], [1, 0, 0, 0, 3, 2, 4, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
    assert_eq!(bytes[16..32], [7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[32..37], b"seen\0");
    let map = MapAddress { controller: 0x102, map: 3 };
    let read = MapCommand::Read { map, length_bytes: 5, first_slot: 6 };
    let sqe = read.to_sqe();
    assert_eq!((sqe.opcode, sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13), (0xCE, 3, 5, 0x102, 6));
    assert_eq!(sqe.sgl.length_bytes, 5);
    assert_eq!(AdminCommand::parse(&sqe), Ok(AdminCommand::Map(read)));
    let changes = [MapChange::Set, MapChange::SetNew, MapChange::SetExisting, MapChange::Delete];
    for (number, change) in (0..).zip(changes) {
        let sqe = MapCommand::Change { map, change }.to_sqe();
        assert_eq!((sqe.opcode, sqe.cdw10, sqe.cdw12), (0xC9, 3, 0x102 | number << 16));
    }
    let get = MapCommand::Get { map, length_bytes: 8 }.to_sqe();
    assert_eq!((get.opcode, get.cdw10, get.cdw11, get.cdw12), (0xC3, 3, 8, 0x102));
    let report = MapCommand::Report { controller: 0xFFFF, length_bytes: 64 }.to_sqe();
    assert_eq!((report.opcode, report.cdw11, report.cdw12), (0xC2, 64, 0xFFFF));
    // The upper half of dword 12 has a meaning only for Map Change, and there only two bits.
    let refused = Err(Status::INVALID_FIELD.with_dnr());
    for (sqe, bit) in [(sqe, 16), (get, 16), (report, 16), (get, 31)] {
        let sqe = Sqe { cdw12: sqe.cdw12 | 1 << bit, ..sqe };
        assert_eq!(AdminCommand::parse(&sqe), refused, "{sqe:?}");
    }
    let change = MapCommand::Change { map, change: MapChange::Set }.to_sqe();
    assert_eq!(AdminCommand::parse(&Sqe { cdw12: 1 << 18, ..change }), refused);
}
