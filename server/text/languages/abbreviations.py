"""Words with a full stop or exclamation mark that does not end a sentence, beyond those that sentencex knows.

Where the word is also common at the end of sentences in its language ("no." in English), it is listed only for use
before numbers.
"""

from __future__ import annotations

_EVERYWHERE_TEXT = """
mr mrs ms mx dr drs prof rev gen maj capt lt sgt gov st mt ft sr jr messrs mme mlle mm sra srta dra frl dipl ing pp
cf vs v approx z.b d.h u.a o.ä bzw e.g i.e viz p.ex c.-à-d t.ex p.ej bd jh
"""
EVERYWHERE = frozenset(_EVERYWHERE_TEXT.split())
"""Abbreviations that do not end a sentence in any language, even before a capital letter."""

_BEFORE_NUMBERS_TEXT = """
no nos nr nros nro núm num n nº p s ss str pg pág pag pags págs págg pagg blz sid art arts abs sec sect vol vols ch
chap cap kap fig figs abb tab tabl eq ed hft op parr § ziff rn max mind min ca aprox env circa cca ok tel tlf fax
apt ste bldg storg cad sok sk md č čl čís čp rok obr ust pkt poz lp col v vv rd ave av blvd kpl sv réf ref ver jan
feb mar apr may jun jul aug sep sept oct nov dec abr mai стр с ст рис табл п пп гл ч т тел прибл κεφ σελ άρθρ αρ περ
τηλ ص ج رقم म पृ सं क्र नं
"""
BEFORE_NUMBERS = frozenset(_BEFORE_NUMBERS_TEXT.split())
"""Abbreviations that do not end a sentence before a digit or a Roman numeral."""

_BY_LANGUAGE_TEXT = {
    "en": "deg sen pres messrs hwy dept univ assn bros co ave adm cmdr supt atty amb insp hon rep col",
    "de": """
        mio mrd tsd fa inkl exkl ggf evtl vgl bspw usf geb gest st tel nr abs aufl bearb hrsg jhd jh ca max min mind
        zzgl zz abzgl bez betr allg ehem einschl entspr frz engl dt lat griech kath ev röm österr schweiz zb dh ua
        uä oä ff ebd med phil rer nat jur iur hc mag di ra priv doz wwe hl hll kgl std sek stck dgl gebr gem mwst
        o.g s.o s.u v.a z.t u.u i.d.r i.a z.zt bzgl lt
    """,
    "fr": """
        m mm mme mmes mlle mlles mgr me dr pr prof st ste sts stes av bd boul chap env ex éd éds fasc hab ibid janv
        févr juil sept oct nov déc lat masc fém max no nos obs op p pp réf rel sq suiv tél trad vol apr j.-c c.-à-d
        cf cie ets rev
    """,
    "es": """
        sr sra sres sras srta dr dra dres d dª dña prof profa lic ing arq gral cnel cap tte sto sta fr p.ej ej pág
        págs págg art núm vol ed av avda c/ cía ee uu ud uds vd vds ss aprox máx mín tel fig cf etc izq dcha apdo
        depto prov gob pdte excmo ilmo rdo admón a.c d.c s ss.aa
    """,
    "it": """
        sig sigg sig.ra sig.na sig.re dott dott.ssa dr prof prof.ssa avv ing geom rag arch on sen egr gent spett ill
        pag pagg art artt n nn vol voll cap capp fig figg es ad.es cfr cf sec ecc s ss sant ca col tel max min prov
        ediz ed op cit p.es p.zza v.le c.so
    """,
    "pt": """
        sr sra srs sras srta dr dra drs dras prof profa profs eng enga arq d exmo exma ilmo pe fr sto sta gen cel
        cap ten pág págs art arts núm n nº vol av r rua al tel fig séc aprox máx mín p.ex ex cf v.ex cia ltda dep
        sen gov pres
    """,
    "nl": """
        dhr mevr mw mej ir ing drs mr dr prof ds st bijv bv vgl nl o.a d.w.z m.a.w m.b.t i.v.m e.d a.u.b z.o.z n.a.v
        t.a.v t.o.v blz art nr str tel ca max min resp incl excl evt jhr jkvr gebr wed zgn
    """,
    "sv": """
        bl.a t.ex d.v.s s.k f.d p.g.a m.fl o.s.v fr.o.m t.o.m e.kr f.kr resp kap sid nr st tel dr prof hr fr ca c:a
        ev inkl exkl max min jfr eg eng tr fig tab kl
    """,
    "da": "bl.a f.eks dvs d.v.s m.fl osv hr fr dr prof kap nr str tel ca inkl ekskl evt jf ifm pga mht vedr st",
    "nb": "bl.a f.eks dvs d.v.s m.fl osv hr fr dr prof kap nr tel ca inkl ekskl evt jf pga mht vedr st",
    "pl": """
        prof dr hab mgr inż lek doc ks bp abp kard św błg płk ppłk gen mjr kpt por ppor sierż kpr dyr min red p pp
        np m.in tzn tzw tj itd itp ul al pl os woj pow gm zob wg ww im r w s str nr art ust pkt poz t rys tab tabl
        mln mld tys zł gr godz tel ur zm wyd pn wt śr czw pt sob ndz
    """,
    "cs": """
        prof doc dr ing mgr bc mudr judr phdr rndr paeddr mvdr arch plk gen kpt por čet sv p pí sl např tzn tzv tj
        mj popř resp ev cca č čl čís str s ul nám tř okr mil mld tis kč hod tel r st stol př kap odd obr tab viz vyd
        roč red ř
    """,
    "sk": """
        prof doc dr ing mgr bc mudr judr phdr gen plk kpt sv p napr tzn tzv tj resp č čl str ul nám okr mil mld tis
        tel r st
    """,
    "ru": """
        г гг в вв ул пр просп пер пл наб бул д кв корп стр с сс ст гл п пп ч т тт рис табл илл см ср напр т.е т.к
        т.н т.п т.д т.о и.о др проф акад доц д-р канд о-в оз р обл р-н гос св млн млрд тыс руб коп долл тел ред изд
        сост мин макс сек кг км рожд ум нем англ фр лат греч итал исп т.ч сер
    """,
    "uk": """
        р рр ст вул пр просп пров пл бул наб буд кв корп стор с гл п пп ч т рис табл див напр т.е т.зв т.д і.т.д
        проф акад доц д-р ім м смт о оз обл р-н св млн млрд тис грн коп дол тел пер уклад хв сек рос англ нім укр
    """,
    "bg": """
        г гг в вв ул бул пл стр с ст гл чл т фиг табл вж напр т.е т.нар проф акад доц д-р инж св млн млрд хил лв тел
        ред изд
    """,
    "el": """
        κ κκ κα δρ δις καθ αρ σελ σσ βλ πρβλ π.χ μ.χ π.μ μ.μ κ.λπ κ.ά δηλ λ.χ τ.μ άρθρ κεφ παρ τ περ τηλ οδ λεωφ αγ
        υπ εκδ επιμ μτφρ στρ εκ δισ χιλ ευρ
    """,
    "tr": """
        dr prof doç yrd av sn sayın bkz örn vb vs cad sok sk mah apt no nu s ss md fık yy m.ö m.s mö ms alb yb gen
        org kor tüm tuğ yzb tğm üstğm mio mlr mn haz çev krş tel gn müh mim ecz uzm op öğr gör kur
    """,
    "fi": """
        prof tri dos maist lis toht esim mm ks vrt ts eli ns n nk ym jne s ss nro no kpl luku vuos milj mrd mk eur
        puh os st p klo tj toim johd hra rva nti
    """,
    "et": "prof dr hr pr nt st s.o s.t lk nr tn mnt pst vt vrd milj mld tuh eur tel",
    "hu": "dr prof ifj özv gr br sz szt u krt pl ill kb ún stb o bek tel fszt ker mrd id vö ld ford szerk",
    "ro": """
        dl dna dlui dnei d-l d-na dr prof ing av sf str nr pag art al lit vol cap fig tab ex etc mil mld cca aprox
        tel bl sc ap jud
    """,
    "hr": """
        prof dr mr sc dipl ing g gđa gđica sv ul br str čl st tzv npr odn tj mil mlrd tis oko cca tel god usp v vidi
    """,
    "sr": """
        prof dr mr sc dipl ing g gđa sv ul br str čl st tzv npr odn tj god проф др мр инж г гђа св ул бр стр чл ст
        тзв нпр одн тј год
    """,
    "sl": "prof dr mag dipl inž g ga gdč sv ul št str čl oz npr tj tzv ipd itd mio mrd tel l st",
    "lt": """
        prof dr doc habil inž p pan šv g pr al pl m r aps kt t.y pvz t.t mln mlrd tūkst tel nr str vad žr plg
    """,
    "lv": "prof dr doc hab inž sv g k d piem t.i t.s u.c u.tml lpp nr milj mljrd tūkst tel sal skat",
    "ar": "د أ م ص ج ت هـ ق.م أ.د ط س",
    "he": "ד פרופ גב מר עמ מס",
    "hi": "डॉ श्री श्रीमती सुश्री कु प्रो पं सं पृ रु कि मी लि मो ई वि क्र नं",
    "mr": "डॉ श्री श्रीमती सौ कु प्रा पं सं पृ रु कि मी",
    "bn": "ড ডা মো মোঃ প্রফ অধ্যা পৃ নং খ্রি",
    "id": "dr prof h hj ir drs dra sdr jl no hlm tgl thn dsb dll yth tn ny bpk kol brigjen mayjen",
    "vi": "ts pgs gs ths tp p q đ bs ks tr",
}
_QUANTITIES_TEXT = {
    "en": """
        abbr abt addl adj appl approx appr appx arr assoc asst attn avg bldg comm cont corr dia diam dist equiv
        esp est excl ext freq govt hist incl indiv intl mfg mfr mgmt mgr min max misc natl neg opp orig pkg
        prelim pred prob ptl qty recd reqd resp sec std subj suppl tbsp tech temp transl treas tsp univ unspec
        usu var wkly wt yrly
    """,
    "de": """
        abgek abh allg ausschl bes durchschn eig eigtl erf evt exkl geschl gesetzl gew gleichz höchst insb
        insbes jährl lfd mehrf monatl mtl nachf offiz priv resp sog stündl tägl tats teilw ungef untersch urspr
        versch vorauss vorl vorw wahrsch wöchentl zul zusätzl zuzügl ink
    """,
    "fr": "approx compl compr conf div env estim excl incl max min moy obl prov resp suppl temp",
    "es": "aprox compl est excl excep exp incl máx max mín min prom resp temp vol",
    "it": "appross comp compr escl incl max med min orig resp risp temp",
    "pt": "aprox compl excl exc incl máx max mín min méd prox resp temp",
    "nl": "evt excl exkl gem incl inkl max min ong oorspr resp vnl",
    "sv": "exkl genomsn inkl max min motsv resp särsk ung uppsk urspr",
    "da": "ekskl evt gns gnsn hhv inkl maks max min oprind resp særl",
    "nb": "ekskl evt gj.sn gjsn hhv inkl maks max min oppr resp særl",
    "pl": "maks max min ok przybl szac śr wł wył włącz wzgl zob",
    "cs": "max min odh orient popř přibl příp prům resp vč vyj",
    "sk": "max min odh popr približ príp priem resp vrát",
    "ru": "включ вкл искл макс мин ок ориент отн прибл соотв сред темп",
    "uk": "бл викл вкл включ відп макс мін прибл сер темп",
    "bg": "вкл включ изкл макс мин ок прибл ср съотв темп",
    "el": "αντίστ ελάχ ελαχ εξαιρ μεγ μέγ περ συμπ συμπερ",
    "tr": "asg azm dah dâh har maks max min ort tah yakl",
    "fi": "enint keskim maks max min n noin sis suur vast vähint",
    "et": "kesk ligik maks max min sh vastav",
    "hu": "átl excl ill incl inkl kb legf max min",
    "ro": "aprox excl incl max med min resp",
    "hr": "isklj maks max min odn okv pribl prib pros uklj",
    "sr": "isklj maks max min odn pribl prib pros uklj искљ макс мин одн прибл прос укљ",
    "sl": "izklj maks max min povp pribl vklj",
    "lt": "apytiksl įsk išsk maks max min vid",
    "lv": "apm attiec iesk izņ maks max min vid",
    "id": "maks min",
}
_QUANTITIES = {code: frozenset(text.split()) for code, text in _QUANTITIES_TEXT.items()}
"""Abbreviations before the word or number that they describe, as max., approx. and incl. in English."""
BY_LANGUAGE = {
    code: frozenset(text.split()) | _QUANTITIES.get(code, frozenset()) for code, text in _BY_LANGUAGE_TEXT.items()
}
"""Further abbreviations, by the ISO 639-1 code of their language."""
ANY_LANGUAGE = frozenset().union(*BY_LANGUAGE.values())
"""Abbreviations of all languages together, for a text of an unknown language."""

_FURTHER_TEXT = {
    "en": """
        para paras eds ed vol vols trans eqs figs ch chap inst encl pron subsp spp div subdiv apt cpl esq app gal
        mon tue tues thu thur thurs fri jan feb apr aug sept oct nov dec ger lat bro sis
    """,
    "de": """
        abb abt anh anl anm bhf bsp dipl.-ing etw evang fam gez ges geschw hbf inh ital jmd jmdn kaiserl kap kffr kfm
        königl kto lit min.-präs nachm okt dez pkt polit rdnr stellungn stellv stk tab techn temp verf verh verl
        vermutl verw vorm vors wirtsch bl kl pl rn wiss ziff zit zus jan feb apr aug sept nov mo di mi do sa wg zw
    """,
    "fr": """
        adj adv angl anc ap arr coll conj dép fév géogr hist ill introd litt lun mus méd ouvr philos plur préf prép
        rééd subst sté ven all esp ital cdt janv sept oct
    """,
    "es": """
        abg alte arts caps cdte cfr coord cód eds ene excma fasc feb figs fol hnos ibíd ilma izda mons mss mtra mtro
        núms obs pbro prol pte quím ref rvdo secc sgto sigs supl tab teléf tfno trad urb vols íd abr ago sept oct nov
        dic bco fdo rte vto pzo pl
    """,
    "it": """
        alleg ecc fasc fraz giov mart num obbl parr rec s.p.a s.r.l sett sez seg segg suppl tab tabb ten vd ott nov dic
        genn febbr ag c.so p.za on.le
    """,
    "pt": """
        abr ago apto bl caps coord dto eds esq exa fev figs fl fls ibid ilma jan jul jun lda nov obs org orgs out proc
        pça qd supl tab trad trav tít vols exmos
    """,
    "nl": "afb apr aug dec feb fig gest lic nov okt overl par red sept tab uitg volg",
    "pl": """
        bł br cdn dot ew sp grud gł jedn jw liczb lok mies nast nazw niedz oprac paźdz pocz podst poł proc przew przyp
        pseud rozdz rozp ryc sek stycz sygn szt tłum ub wew wsch zach zał zam zast zesz łac ang niem kwiec wrzes
    """,
    "cs": "angl aj csc drsc evid lat mjr něm odst pozn překl srov ved zejm zn zvl čes čp ital špan",
    "sk": "angl apr evid feb jan lat nem odst okt porov pozn preds roč sept tab zn zodp čes kap vr nov dec aug",
    "ru": """
        абз авг апр вост воен всп вып г-жа г-н ген дек доб доп евр зав зам им инж ист кап лейт лит мор муз мн нач науч
        нояб обраб окт оригин отв оф пом полит прил прим пр-т пос разд респ сев сент уч физ франц хим центр шос экз
        эконом эт юж юр янв февр полк подполк урожд яп техн ред фам
    """,
    "uk": """
        берез верес вид вип г-н ген груд жовт заст зав інж канд квіт листоп лип лют лат нач розд серп січ трав упоряд
        черв ред фам
    """,
    "bg": """
        авг ап апр арх англ бл вх г-жа г-н дек ет им инж лат нем ноем нар общ обл окт прев рус септ сл хр янв ян февр
    """,
    "el": """
        αγγλ αδ αι απρ αριθ αρθ αυγ άρθ γαλλ γεν γερμ δεκ εδ εικ εκατ ελλ ιαν ιδ κυρ λατ μαρ νοε οκτ πίν πλ σεπτ ταξ
        τεύχ τόμ φεβ
    """,
    "tr": "ağu arş blv böl eyl hz nis şti şub yay ütğm",
    "sv": """
        adr anm apr aug avd avs dec dvs egentl enl ex fil forts följ föreg förf förk jan feb jur kand kungl lat lic mån
        milj nov okt omkr pga plur red sept sing s:t tekn tors uppl utg vard äv övers
    """,
    "da": "adr afd alm anm apr aug bem cand dec feb fx iht ift jan nov okt oprindl red sct sept skt tidl tirs tors udg",
    "nb": "adr alm anm apr aug avd cand des feb ift ifm iht jan mill nov okt opprinn overs red sept tidl tirs tors utg",
    "fi": "alk as ekr engl ins jms jkr jälk kreik kuol lat pyh ruots synt yms suom",
    "hu": """
        ang apr aug ered ezr febr főv gör hsz jún júl kft kiad köt lat márc mill ném nov okt szept tkp uo uő ált ápr
        évf őrn dec jan
    """,
    "ro": """
        acad alin apr arh aug conf coord dec engl feb germ ian iul iun lat lect mart nov obs oct sect sept trad î.hr
        d.hr șos
    """,
    "hr": """
        akad eng gosp inž izd jed kol lat mag njem odg ožu pogl pr prev rođ ruj sij sl tab toč umr ur velj grč
    """,
    "sr": """
        akad akt inž izd prev rođ sl tač ur акад дин дипл енгл изд књ лат нем прев рођ сл тач ум ур хиљ тел мил млрд
        фр
    """,
    "sl": "akad ang avg izd jan lat feb nov dec okt pogl polk prev prim sept sl tab roj doc tis um",
    "lt": "angl apskr gim gt kun lat leid lent lot pav red sav sek sud val vert vok vysk",
    "lv": "angl aptuv att dzim izd lat mir nod pulkv red sek tab tulk vāc",
    "et": "dots ekr ingl keskm lad lhk mag näit pkr surn sünd tab toim umb",
    "id": """
        agt apr des drg feb jan jend kab kapt kec kel letjen letkol lettu mis nov okt prov sdri sept telp pt cv ud kh
    """,
    "vi": "nxb tx",
    "he": "רח שד טל לדוג",
    "ar": "ص.ب د.إ ر.س ج.م.ع و.م",
}
FURTHER = {code: frozenset(text.split()) for code, text in _FURTHER_TEXT.items()}
"""Abbreviations by language that may also end a sentence, or are also words.

They end a sentence only if the next word is an article, pronoun or other frequent word that begins with a capital.
"""
FURTHER_ANY_LANGUAGE = frozenset().union(*FURTHER.values())

_UNITS_TEXT = """
 km kg mg cm mm ml dl cl kb mb gb tb kw mw hz khz mhz ghz db ft pt hp bp hr kr kč zł px nm gr lb lbs hrs tb кг км см
 мм мг мл
hm hmm shh psst pst tsk brr grr zzz pfft tv pc cd dvd wc sms gps css html xml http php sql ssh vpn pdf mp
"""
WITHOUT_VOWEL = frozenset(_UNITS_TEXT.split())
"""Units, interjections and lower-case acronyms without a vowel, which may end a sentence."""
SYLLABIC_CONSONANTS = frozenset({"cs", "sk", "sl", "hr", "bs", "sr", "mk", "cy"})
"""Languages that have words without a vowel, such as prst and krk."""

NAMES = frozenset({"yahoo", "jeopardy", "joomla", "kahoot", "wham", "yum", "rouge", "ahoy", "panic", "jeb", "e"})
"""Words before the exclamation mark in names that have one: Yahoo!, Yum! Brands, Moulin Rouge!, E!."""

NAMES_WITH_FULL_STOP = ("モーニング娘。", "カントリー娘。", "ゲスの極み乙女。")
"""Names that are written with a Japanese full stop."""

BEFORE_AL = ("et", " e", " y")
"""Words before "al." in "et al.", "e al." and "y al."."""
CLOCK = frozenset({"a.m", "p.m"})
"""Abbreviations of several parts that often end a sentence."""

_AMBIGUOUS_TEXT = "est ext hist max min neg sec std tech temp var"
AMBIGUOUS = frozenset(_AMBIGUOUS_TEXT.split())
"""English abbreviations that are also units, or words at the end of a sentence."""

_BEFORE_LETTERS_TEXT = "plan vitamin grade class type option group hepatitis appendix section level platform terminal"
BEFORE_LETTERS = frozenset(_BEFORE_LETTERS_TEXT.split())
"""English nouns before a letter that names one of several things: plan B, vitamin C."""

_NUMBERED_TEXT = """
kapitel seite nummer teil band abschnitt absatz artikel punkt ziffer bild abbildung tabelle raum zimmer stufe klasse
kapitola strana číslo díl část článek bod kapitoly straně afsnit side kapitlet avsnitt sida sidan del tabell figur
luku sivu kohta osa numero kuva taulukko lk peatükk fejezet oldal pont szám rozdział strona numer część punkt tom
poglavje stran točka poglavlje stranica broj članak tačka nodaļa skyrius kafli bölüm sayfa sayı madde cilt
kapitola časť článok h
"""
NUMBERED = frozenset(_NUMBERED_TEXT.split())
"""Nouns that stand before a number ("Kapitel 4."), in languages that write a full stop after ordinal numbers.

After such a noun and a number, the full stop ends a sentence and does not make the number an ordinal.
"""
